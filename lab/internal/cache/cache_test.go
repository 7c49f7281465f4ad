package cache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestKeyDependsOnEveryInput(t *testing.T) {
	seen := map[string]string{}
	for name, k := range map[string]*Key{
		"empty":            new(Key),
		"one":              new(Key).Add("a", "b"),
		"other value":      new(Key).Add("a", "c"),
		"other name":       new(Key).Add("b", "b"),
		"moved boundary":   new(Key).Add("ab", ""),
		"two":              new(Key).Add("a", "b").Add("c", "d"),
		"two, other order": new(Key).Add("c", "d").Add("a", "b"),
		"two in one":       new(Key).Add("a", "b1:c1:d"),
	} {
		if other, ok := seen[k.String()]; ok {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[k.String()] = name
	}
	if a, b := new(Key).Add("a", "b").String(), new(Key).Add("a", "b").String(); a != b {
		t.Errorf("equal inputs, different keys %s and %s", a, b)
	}
}

func TestKeyOfFileIsItsContent(t *testing.T) {
	write := func(content string) string {
		path := filepath.Join(t.TempDir(), "go.sum")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		k := new(Key)
		if err := k.AddFile("go.sum", path); err != nil {
			t.Fatal(err)
		}
		return k.String()
	}
	if first, second := write("x"), write("x"); first != second {
		t.Error("the same content in another directory has another key")
	}
	if write("x") == write("y") {
		t.Error("another content has the same key")
	}
	if err := new(Key).AddFile("go.sum", filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("no error for a file that is not there")
	}
}

func TestGetMakesOnce(t *testing.T) {
	store := Store{Dir: t.TempDir()}
	key := new(Key).Add("a", "b")
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, err := store.Get(t.Context(), "thing", key, func(out string) error {
				made.Add(1)
				return os.WriteFile(out, []byte("content"), 0o644)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != "content" {
				t.Errorf("product is %q (%v)", got, err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times", made.Load())
	}
}

func TestGetLeavesNothingOfAFailure(t *testing.T) {
	store := Store{Dir: t.TempDir()}
	key := new(Key).Add("a", "b")
	broken := errors.New("compiler on fire")
	_, err := store.Get(t.Context(), "thing", key, func(out string) error {
		return errors.Join(os.WriteFile(out, []byte("half"), 0o644), broken)
	})
	if !errors.Is(err, broken) {
		t.Fatalf("error is %v", err)
	}
	if exists(store.Path("thing", key)) || exists(store.Path("thing", key)+".partial") {
		t.Error("a failed product was left behind")
	}
	// What a killed process left is no obstacle either.
	if err := os.WriteFile(store.Path("thing", key)+".partial", []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), "thing", key, func(out string) error { return os.WriteFile(out, nil, 0o644) }); err != nil {
		t.Error(err)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "lock")
	unlock, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("second TryLock: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no patience"))
	if _, err := Lock(ctx, path); err == nil || !errors.Is(err, context.Cause(ctx)) {
		t.Errorf("Lock with a cancelled context: %v", err)
	}
	unlock()
	again, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestLockFileMayBeRemovedByItsOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	stale, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer stale.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	unlock()
	if sameFile(stale, path) {
		t.Error("a removed file passes for the lock")
	}
	next, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer next()
	if sameFile(stale, path) {
		t.Error("the old file passes for the new lock")
	}
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("second TryLock: %v", err)
	}
}

func TestDefaultFollowsTheEnvironment(t *testing.T) {
	t.Setenv("PORTWAY_CACHE", "/somewhere")
	if s, err := Default(); err != nil || s.Dir != "/somewhere/portway/lab" {
		t.Errorf("with PORTWAY_CACHE: %v, %v", s, err)
	}
	t.Setenv("PORTWAY_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	if s, err := Default(); err != nil || s.Dir != "/xdg/portway/lab" {
		t.Errorf("with XDG_CACHE_HOME: %v, %v", s, err)
	}
}
