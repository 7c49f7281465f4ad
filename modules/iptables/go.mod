module github.com/portway/portway/modules/iptables

go 1.26.0
