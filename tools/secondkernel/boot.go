package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// modulesRoot is where Debian's user-mode-linux has the modules of its kernel.
const modulesRoot = "/usr/lib/uml/modules"

// kernel is the other kernel.
type kernel struct{ program, modprobe, modules string }

const cure = "apt-get install user-mode-linux kmod"

// findKernel finds the program that is a kernel, and its modules.
func findKernel() (k kernel, err error) {
	var errs [2]error
	k.program, errs[0] = lookPath("linux.uml")
	k.modprobe, errs[1] = lookPath("modprobe")
	found, err := filepath.Glob(modulesRoot + "/*/modules.dep.bin")
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%s must hold the modules of one kernel, and holds %v", modulesRoot, found)
	}
	if err = errors.Join(errs[0], errs[1], err); err != nil {
		return k, fmt.Errorf("%w (cure: %s)", err, cure)
	}
	k.modules = filepath.Dir(found[0])
	return k, nil
}

// lookPath also looks where users who are not root have no path to.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if err != nil {
			path, err = exec.LookPath(dir + program)
		}
	}
	return path, err
}

// boot runs the command on another kernel and returns its exit code.
func boot(ctx context.Context, k kernel, o options, stdout, stderr io.Writer) (code int, err error) {
	folder, err := os.MkdirTemp("", "secondkernel-")
	if err != nil {
		return failed, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := prepare(folder, k, o); err != nil {
		return failed, err
	}
	m, err := start(k.program, folder, o, stdout, stderr)
	if err != nil {
		return failed, err
	}
	code, err = m.await(ctx, o.timeout, stderr)
	m.end(err == nil)
	if errors.Is(err, errNoCode) {
		return failed, fmt.Errorf("%w; the last that it logged:\n%s", err, m.lastLogged())
	}
	return code, err
}

// prepare writes down what the guest is to do.
func prepare(folder string, k kernel, o options) error {
	argv, err := resolve(o.command)
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	modprobe, err := writeModprobe(folder, k)
	if err != nil {
		return err
	}
	if err := linkLegacy(folder); err != nil {
		return err
	}
	return job{
		Argv: argv, Dir: dir, Env: chooseEnv(os.Environ(), o.env), Modprobe: modprobe,
		Visible:  hiddenFolders([]string{folder, filepath.Dir(argv[0]), dir, filepath.Dir(self)}),
		Writable: o.writable,
	}.write(folder)
}

// machine is a running kernel.
type machine struct {
	cmd    *exec.Cmd
	log    *bytes.Buffer // what the kernel says
	copies *sync.WaitGroup
	ended  chan struct{} // closed when it has
	guest  *os.File      // the line to the guest's init
	code   chan int      // what it sends back
}

// start boots. The guest's serial lines are our pipes: line 0 carries signals to
// its init and the exit code back, 1 and 2 are the command's output.
func start(program, folder string, o options, stdout, stderr io.Writer) (*machine, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	m := &machine{log: new(bytes.Buffer), copies: new(sync.WaitGroup), ended: make(chan struct{}), code: make(chan int, 1)}
	var kernelLog io.Writer = m.log
	if o.verbose {
		kernelLog = io.MultiWriter(m.log, stderr)
	}
	m.cmd = exec.Command(program, kernelArgs(o, self, folder)...) //nolint:noctx // await ends it, gently first
	m.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	m.cmd.Stdout, m.cmd.Stderr = kernelLog, kernelLog
	m.cmd.SysProcAttr = contained()

	guest, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	m.guest = guest
	ends := []*os.File{theirs}
	for _, w := range []io.Writer{stdout, stderr} {
		r, theirs, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ends = append(ends, theirs)
		m.copies.Go(func() {
			io.Copy(w, r) //nolint:errcheck // nobody is left to be told
			r.Close()
		})
	}
	m.cmd.ExtraFiles = ends
	err = m.startAndWait()
	for _, f := range ends {
		f.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	m.copies.Go(func() { m.readCode() })
	return m, nil
}

// kernelArgs is what the kernel is told. Its init gets what follows the dashes.
func kernelArgs(o options, self, folder string) []string {
	args := []string{
		"mem=" + o.memory, "root=none", "rootfstype=hostfs", "rootflags=/", "ro", "init=" + self,
		"umid=guest", "uml_dir=" + folder + "/", "panic=-1", "devtmpfs.mount=0", "quiet", "loglevel=5",
		"con=null", "con0=null,fd:1", "ssl=null", "ssl0=fd:3,fd:3", "ssl1=null,fd:4", "ssl2=null,fd:5",
	}
	if o.tap != "" {
		args = append(args, "vec0:transport=tap,ifname="+o.tap+",depth=128")
	}
	return append(args, "--", asInit, folder)
}

// contained keeps the kernel's processes together: each process of the guest is
// one of the machine, and all must end with the kernel, and it with us. The
// process group keeps a terminal's signals from it.
func contained() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if uid := os.Geteuid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	}
	return attr
}

// startAndWait starts the kernel on a thread that lives as long as it does: the
// kernel is killed when its parent dies, and the parent is a thread.
func (m *machine) startAndWait() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		on, err := claimProcessor()
		if err == nil {
			defer on.release()
			err = on.start(m.cmd)
		}
		started <- err
		if err == nil {
			_ = m.cmd.Wait() // a kernel's exit code says nothing about the command
			close(m.ended)
		}
	}()
	return <-started
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "guest"), os.NewFile(uintptr(fds[1]), "line"), nil
}

func (m *machine) readCode() {
	defer close(m.code)
	var code int
	if _, err := fmt.Fscanf(m.guest, "exit %d\n", &code); err == nil {
		m.code <- code
	}
}

// await passes signals on until the command has ended, or its time.
func (m *machine) await(ctx context.Context, limit time.Duration, stderr io.Writer) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	timedOut := false
	for {
		select {
		case s := <-signals:
			fmt.Fprintf(m.guest, "signal %d\n", s)
		case <-ctx.Done():
			return failed, ctx.Err()
		case <-timer.C:
			if timedOut {
				return failed, fmt.Errorf("%v over, and the command ignores SIGQUIT", limit)
			}
			timedOut = true
			fmt.Fprintf(stderr, "secondkernel: the command has run for %v, its limit\n", limit)
			fmt.Fprintf(m.guest, "signal %d\n", syscall.SIGQUIT) // a Go program says where it was
			timer.Reset(10 * time.Second)
		case code, ok := <-m.code:
			if !ok {
				return failed, errNoCode
			}
			return code, nil
		}
	}
}

// end stops the kernel and waits for what it has said. After a command that has
// ended it stops by itself.
func (m *machine) end(byItself bool) {
	if byItself {
		select {
		case <-m.ended:
		case <-time.After(5 * time.Second):
		}
	}
	_ = m.cmd.Process.Kill() // it may be gone already
	<-m.ended
	m.guest.Close()
	m.copies.Wait()
}

// errNoCode is a kernel that failed before it could run the command.
var errNoCode = errors.New("the other kernel ended without a word about the command")

func (m *machine) lastLogged() string {
	lines := strings.Split(strings.TrimSpace(m.log.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
