// Package cache keeps what is expensive to make, each product under a key that
// is a hash of what it is made from. A product appears in the cache complete or
// not at all, and processes that want the same one make it once.
package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Key collects the inputs of a product.
type Key struct {
	inputs [][2]string
}

// Add adds a named input. The order of calls is part of the key.
func (k *Key) Add(name, value string) *Key {
	k.inputs = append(k.inputs, [2]string{name, value})
	return k
}

// AddFile adds the content of a file. Its path is not part of the key, so two
// checkouts of the same sources share their products.
func (k *Key) AddFile(name, path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("input %s: %w", name, err)
	}
	k.Add(name, string(content))
	return nil
}

// String is the hash, short enough for a file name or an image tag.
func (k *Key) String() string {
	h := sha256.New()
	for _, in := range k.inputs {
		// Lengths keep ("ab","c") and ("a","bc") apart.
		fmt.Fprintf(h, "%d:%s%d:%s", len(in[0]), in[0], len(in[1]), in[1])
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// Store is a cache directory.
type Store struct{ Dir string }

// Default is the store of this user: $PORTWAY_CACHE, or the user's cache
// directory, with portway/lab below it.
func Default() (Store, error) {
	base := os.Getenv("PORTWAY_CACHE")
	if base == "" {
		var err error
		if base, err = os.UserCacheDir(); err != nil {
			return Store{}, fmt.Errorf("no cache directory: %w; set PORTWAY_CACHE", err)
		}
	}
	abs, err := filepath.Abs(filepath.Join(base, "portway", "lab"))
	if err != nil {
		return Store{}, fmt.Errorf("cache directory %s: %w", base, err)
	}
	return Store{Dir: abs}, nil
}

// Get returns the path of the product name with key, a file or a directory. If
// it is not there yet, make is called with a path to create it at; it is moved
// into place only when make has succeeded.
func (s Store) Get(ctx context.Context, name string, key *Key, make func(path string) error) (string, error) {
	final := s.Path(name, key)
	if exists(final) {
		return final, nil
	}
	unlock, err := Lock(ctx, final+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(final) {
		return final, nil // another process made it while we waited
	}
	partial := final + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", fmt.Errorf("product %s: %w", name, err)
	}
	if err := make(partial); err != nil {
		return "", errors.Join(fmt.Errorf("product %s: %w", name, err), os.RemoveAll(partial))
	}
	if err := os.Rename(partial, final); err != nil {
		return "", fmt.Errorf("product %s: %w", name, err)
	}
	return final, nil
}

// Path is where the product name with key is or would be.
func (s Store) Path(name string, key *Key) string {
	return filepath.Join(s.Dir, name+"-"+key.String())
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ErrLocked says that another process holds a lock that was not to be waited
// for.
var ErrLocked = errors.New("held by another process")

// TryLock takes the lock file at path or fails at once with ErrLocked.
func TryLock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		closeErr := f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, ErrLocked), closeErr)
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), closeErr)
	}
	if !sameFile(f, path) { // its former owner removed it while we opened it
		closeQuietly(f)
		return TryLock(path)
	}
	// The kernel frees the lock with the last descriptor, also when we are
	// killed. The owner may remove the file.
	return func() { closeQuietly(f) }, nil
}

func sameFile(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there)
}

// Lock takes the lock file at path, waiting for its present owner.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		unlock, err := TryLock(path)
		if !errors.Is(err, ErrLocked) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for lock %s: %w", path, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// closeQuietly is for files whose close cannot lose anything.
func closeQuietly(c io.Closer) { _ = c.Close() }
