module github.com/portway/portway/e2e

go 1.26.0
