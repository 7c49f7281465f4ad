module github.com/portway/portway/modules/healthcheck

go 1.26.0

require github.com/portway/portway/modules/dataplane v0.0.0

replace github.com/portway/portway/modules/dataplane => ../dataplane
