package kerneltest

import (
	"fmt"
	"io/fs"
)

// Sysctls are settings in memory: a kernel has those that are in the map.
type Sysctls map[string]string

// NewSysctls returns the settings of a kernel that has all that the mode
// wants, with the kernel's defaults.
func NewSysctls() Sysctls {
	return Sysctls{
		"net/ipv4/vs/conntrack":                 "0",
		"net/ipv4/vs/conn_reuse_mode":           "1",
		"net/ipv4/vs/expire_nodest_conn":        "0",
		"net/ipv4/vs/expire_quiescent_template": "0",
		"net/ipv4/conf/all/arp_ignore":          "0",
		"net/ipv4/conf/all/arp_announce":        "0",
	}
}

// Read returns a value.
func (s Sysctls) Read(name string) (string, error) {
	value, ok := s[name]
	if !ok {
		return "", fmt.Errorf("sysctl %s: %w", name, fs.ErrNotExist)
	}
	return value, nil
}

// Write sets a value.
func (s Sysctls) Write(name, value string) error {
	if _, ok := s[name]; !ok {
		return fmt.Errorf("sysctl %s=%s: %w", name, value, fs.ErrNotExist)
	}
	s[name] = value
	return nil
}
