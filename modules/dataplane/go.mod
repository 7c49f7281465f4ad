module github.com/portway/portway/modules/dataplane

go 1.26.0

require (
	github.com/rogpeppe/go-internal v1.16.0
	github.com/vishvananda/netlink v1.3.1
	github.com/vishvananda/netns v0.0.5
	golang.org/x/sys v0.50.0
	pgregory.net/rapid v1.3.0
)

require golang.org/x/tools v0.49.0 // indirect
