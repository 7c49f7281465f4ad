module github.com/portway/portway/modules/ipvs

go 1.26.0

require (
	github.com/portway/portway/modules/dataplane v0.0.0
	golang.org/x/sys v0.50.0
)

replace github.com/portway/portway/modules/dataplane => ../dataplane
