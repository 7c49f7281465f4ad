module github.com/portway/portway/modules/servicecache

go 1.26.0
