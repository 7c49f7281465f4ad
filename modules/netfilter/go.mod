module github.com/portway/portway/modules/netfilter

go 1.26.0
