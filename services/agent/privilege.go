package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// capNetAdmin is the number of CAP_NET_ADMIN.
const capNetAdmin = 12

// CheckPrivilege returns an error if this process may not change the network.
func CheckPrivilege() error {
	f, err := os.Open("/proc/thread-self/status")
	if err != nil {
		return fmt.Errorf("read the capabilities of this process: %w", err)
	}
	defer f.Close()
	return checkCapability(f)
}

func checkCapability(status io.Reader) error {
	lines := bufio.NewScanner(status)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if name != "CapEff" {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return fmt.Errorf("read the capabilities of this process: %w", err)
		}
		if set&(1<<capNetAdmin) == 0 {
			return errors.New("this process may not change the network: run it as root, or give its container the capability NET_ADMIN")
		}
		return nil
	}
	return errors.New("read the capabilities of this process: /proc has no line CapEff")
}
