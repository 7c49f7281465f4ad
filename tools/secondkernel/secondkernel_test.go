package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// role makes the test's program another one: the runner, or a command that says
// what the kernel under it lacks.
const role = "PORTWAY_SECONDKERNEL_ROLE"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == asInit {
		beInit(os.Args[2])
		return
	}
	switch os.Getenv(role) {
	case "runner":
		os.Unsetenv(role)
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	case "probe":
		fmt.Fprintln(os.Stdout, "probe:", probeHost())
		return
	}
	os.Exit(m.Run())
}

// runner is a command that runs args as secondkernel would.
func runner(t *testing.T, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), role+"=runner")
	return cmd
}

// output runs args and returns what it prints.
func output(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := runner(t, args...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), complaint.String(), cmd.ProcessState.ExitCode()
}

// Serial lines have small buffers, and a kernel that ends could take what is in
// them with it.
func TestOutputAndExitCodePass(t *testing.T) {
	t.Parallel()
	out, complaint, code := output(t, "--", "sh", "-c", "pwd; seq 40000; echo to err >&2; exit 3")
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := dir + "\n"
	for i := range 40000 {
		want += strconv.Itoa(i+1) + "\n"
	}
	if out != want {
		t.Errorf("%d bytes of %d arrive, from %.20q to %q", len(out), len(want), out, out[max(0, len(out)-20):])
	}
	if !strings.HasSuffix(complaint, "to err\n") {
		t.Errorf("the error output is %q", complaint)
	}
	if code != 3 {
		t.Errorf("the exit code is %d", code)
	}
}

func TestSignalsPass(t *testing.T) {
	t.Parallel()
	cmd := runner(t, "sh", "-c", `trap "echo caught; exit 5" TERM; echo ready; sleep 60 & wait`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var said []string
	for lines.Scan() {
		said = append(said, lines.Text())
		if lines.Text() == "ready" {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	_ = cmd.Wait() // its code says more
	if code := cmd.ProcessState.ExitCode(); code != 5 || strings.Join(said, " ") != "ready caught" {
		t.Errorf("it said %q and ended with %d", said, code)
	}
}

func TestCommandThatDoesNotExist(t *testing.T) {
	t.Parallel()
	_, complaint, code := output(t, "no-such-program")
	if code != failed || !strings.Contains(complaint, "no-such-program") {
		t.Errorf("exit code %d, errors %q", code, complaint)
	}
}

// The point of it all: whatever kernel the command runs on has IPVS.
func TestKernelHasIPVS(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// New namespaces, since this may be the machine's own kernel.
	out, complaint, code := output(t, "--", "unshare", "--net", "sh", "-ec", `
		`+role+`=probe `+self+`
		ip link add name veth0 type veth peer name veth1
		ipset create clients hash:ip,port,ip timeout 5
		iptables-legacy -t nat -A OUTPUT -m set --match-set clients dst,dst,src -m comment --comment x -j DNAT --to-destination 10.0.0.1
		ip6tables-legacy -A INPUT -p tcp -m conntrack --ctstate NEW -j REJECT --reject-with tcp-reset
		iptables-legacy-save -t nat | grep -c clients`)
	if out != "probe: <nil>\n1\n" || code != 0 {
		t.Errorf("exit code %d: %s%s", code, out, complaint)
	}
}

// TestOtherKernel is about what differs between the machine's kernel and
// another one. A machine whose kernel has IPVS needs no other, and the runner
// says so.
func TestOtherKernel(t *testing.T) {
	if probeHost() == nil {
		_, complaint, code := output(t, "true")
		if code != 0 || !strings.Contains(complaint, "this kernel has IPVS") {
			t.Errorf("with IPVS here: exit code %d, errors %q", code, complaint)
		}
		return
	}
	for name, test := range map[string]func(*testing.T){
		"world": otherWorld, "time limit": otherTimeLimit, "killed": otherKilled,
	} {
		t.Run(name, test)
	}
}

// otherWorld: a chosen environment, nothing to read, and of the machine's files
// only one folder to write to.
func otherWorld(t *testing.T) {
	t.Setenv("TEST_PASSED", "yes")
	t.Setenv("TEST_KEPT_BACK", "no")
	folder, other := t.TempDir(), t.TempDir()
	out, complaint, code := output(t, "-env", "TEST_PASSED", "-writable", folder, "--", "sh", "-c",
		"echo $TEST_PASSED $TEST_KEPT_BACK; wc -c; echo 1 >"+folder+"/result; echo 2 >"+other+"/result; echo 3 >/root/result")
	if out != "yes\n0\n" {
		t.Errorf("the output is %q", out)
	}
	if result, err := os.ReadFile(filepath.Join(folder, "result")); err != nil || string(result) != "1\n" {
		t.Errorf("the writable folder holds %q: %v", result, err)
	}
	for _, path := range []string{filepath.Join(other, "result"), "/root/result"} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s has come to be: %v", path, err)
		}
	}
	if code == 0 || !strings.Contains(complaint, "Read-only file system") {
		t.Errorf("exit code %d, errors %q", code, complaint)
	}
}

func otherTimeLimit(t *testing.T) {
	t.Parallel()
	start := time.Now()
	_, complaint, code := output(t, "-timeout", "1s", "--", "sleep", "100")
	if code == 0 || !strings.Contains(complaint, "1s, its limit") || time.Since(start) > 90*time.Second {
		t.Errorf("after %v exit code %d, errors %q", time.Since(start), code, complaint)
	}
}

// A runner that is killed takes all processes of its kernel along.
func otherKilled(t *testing.T) {
	t.Parallel()
	cmd := runner(t, "--", "sh", "-c", "echo ready; sleep 100")
	cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir()) // its folder is the one thing that stays
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	kernels := children(t, cmd.Process.Pid)
	if len(kernels) != 1 {
		t.Fatalf("the runner has the children %v", kernels)
	}
	if n := processors(t, kernels[0]); n != 1 {
		t.Errorf("the kernel may use %d processors", n)
	}
	if n, all := processors(t, cmd.Process.Pid), processors(t, os.Getpid()); n != all {
		t.Errorf("the runner may use %d processors of %d", n, all)
	}
	processes := append(children(t, kernels[0]), kernels[0])
	if len(processes) < 3 { // init and sh have one each
		t.Fatalf("the kernel has the processes %v", processes)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	for _, pid := range processes {
		for deadline := time.Now().Add(30 * time.Second); alive(pid); {
			if time.Now().After(deadline) {
				t.Fatalf("process %d of %v lives on", pid, processes)
			}
			runtime.Gosched()
		}
	}
}

// children are the processes that a process has started.
func children(t *testing.T, pid int) []int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for word := range strings.FieldsSeq(string(b)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, child)
		}
	}
	return all
}

// processors is how many a process may use, in all of its threads.
func processors(t *testing.T, pid int) (n int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads of %d: %v, %v", pid, threads, err)
	}
	for i, thread := range threads {
		id, err := strconv.Atoi(filepath.Base(thread))
		if err != nil {
			t.Fatal(err)
		}
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(id, &set); err != nil {
			t.Fatal(err)
		}
		if i > 0 && set.Count() != n {
			t.Errorf("thread %d of %d may use %d processors, and others %d", id, pid, set.Count(), n)
		}
		n = set.Count()
	}
	return n
}

// As long as there are processors, no two kernels have the same one.
func TestProcessorsAreClaimed(t *testing.T) {
	var taken unix.CPUSet
	for range runtime.NumCPU() {
		p, err := claimProcessor()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.release)
		if p.claim == nil {
			return // kernels of others are running
		}
		for cpu := range 1024 {
			if p.one.IsSet(cpu) && taken.IsSet(cpu) {
				t.Errorf("processor %d is claimed twice", cpu)
			}
			if p.one.IsSet(cpu) {
				taken.Set(cpu)
			}
		}
	}
	if p, err := claimProcessor(); err != nil || p.claim != nil || p.one.Count() != 1 {
		t.Errorf("beyond the last processor: %+v, %v", p, err)
	}
}

// alive tells whether a process is more than an entry in a table.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}
