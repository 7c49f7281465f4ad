module github.com/portway/portway/services/ctl

go 1.26.0
