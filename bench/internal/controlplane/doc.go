// Package controlplane runs etcd, kube-apiserver and kube-controller-manager as
// plain processes in the network namespace of the caller. Their files are in one
// directory, and they die with the caller.
package controlplane
