module github.com/portway/portway/modules/conntrack

go 1.26.0
