module github.com/portway/portway/modules/healthcheck

go 1.26.0
