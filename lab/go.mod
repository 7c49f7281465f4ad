module github.com/portway/portway/lab

go 1.26.0
