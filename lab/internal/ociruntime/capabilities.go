package ociruntime

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// names are the capabilities in the order of their numbers (capabilities(7)).
const names = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP " +
	"LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER " +
	"SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE " +
	"SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP " +
	"MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF " +
	"CHECKPOINT_RESTORE"

// Bounding is this process's capability bounding set, and whether it lacks any
// capability that the kernel knows.
func Bounding() (allowed []string, lacking bool, err error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, false, fmt.Errorf("capability bounding set: %w", err)
	}
	last, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return nil, false, fmt.Errorf("last capability: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(last)))
	if err != nil {
		return nil, false, fmt.Errorf("last capability: %w", err)
	}
	return bounding(string(status), n)
}

func bounding(status string, last int) (allowed []string, lacking bool, err error) {
	_, rest, ok := strings.Cut(status, "CapBnd:")
	if !ok {
		return nil, false, fmt.Errorf("no CapBnd line in the process status")
	}
	word, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(word), 16, 64)
	if err != nil {
		return nil, false, fmt.Errorf("CapBnd: %w", err)
	}
	for i, name := range strings.Fields(names) {
		switch {
		case mask&(1<<i) != 0:
			allowed = append(allowed, "CAP_"+name)
		case i <= last:
			lacking = true
		}
	}
	return allowed, lacking, nil
}
