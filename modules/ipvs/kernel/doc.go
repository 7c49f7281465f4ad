// Package kernel is what the ipvs mode does to the kernel besides netfilter:
// virtual servers, the device that makes their addresses local, and sysctls.
//
// It translates nothing and decides nothing. Each part is a small interface
// with a real implementation and one that lives in memory, in package
// kerneltest, which refuses what the kernel refuses; one table of tests runs
// against both.
//
//   - [Servers], opened by [Open]: virtual and real servers, by netlink.
//   - [Device], really [Dummy]: kube-ipvs0 and what it makes local.
//   - [Sysctls], of type [ProcSys]: settings of the network namespace;
//     [Settings] says which the mode wants.
//   - [Support]: whether this machine has what all of them need.
//
// Everything acts on the network namespace of the calling thread, except that
// what Open returns stays in the one in which it was opened.
package kernel
