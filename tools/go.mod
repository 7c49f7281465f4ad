module github.com/portway/portway/tools

go 1.26.0
