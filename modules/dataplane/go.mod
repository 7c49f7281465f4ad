module github.com/portway/portway/modules/dataplane

go 1.26.0
