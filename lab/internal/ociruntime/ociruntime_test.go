package ociruntime

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestFileOfInvocation(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--root /r --log /l --log-format json create --bundle /b --pid-file /p --console-socket /c id", "/b/config.json"},
		{"--root /r run -b /b id", "/b/config.json"},
		{"create --bundle=/b id", "/b/config.json"},
		{"create id", "config.json"},
		{"--root /r exec --process /tmp/process.json --detach id", "/tmp/process.json"},
		{"exec id ls", ""},
		{"--root /r start id", ""},
		{"--root /r kill --all id 15", ""},
		{"--version", ""},
		{"", ""},
	} {
		if got := File(strings.Fields(tc.args)); got != tc.want {
			t.Errorf("File(%q) = %q, want %q", tc.args, got, tc.want)
		}
	}
}

func TestEdit(t *testing.T) {
	allowed := []string{"CAP_CHOWN", "CAP_NET_ADMIN"}
	for _, tc := range []struct {
		name, in, want string
		changed        bool
	}{
		{
			"config.json: each set loses what is not allowed, the rest stays",
			`{"ociVersion":"1.0","process":{"args":["sh"],"capabilities":{"bounding":["CAP_CHOWN","CAP_SYS_RESOURCE"],"permitted":["CAP_SYS_RESOURCE"],"ambient":[]}},"root":{"path":"rootfs"}}`,
			`{"ociVersion":"1.0","process":{"args":["sh"],"capabilities":{"bounding":["CAP_CHOWN"],"permitted":[],"ambient":[]}},"root":{"path":"rootfs"}}`,
			true,
		},
		{
			"process.json of exec",
			`{"args":["ip"],"capabilities":{"effective":["CAP_NET_ADMIN","CAP_BPF"]},"user":{"uid":0}}`,
			`{"args":["ip"],"capabilities":{"effective":["CAP_NET_ADMIN"]},"user":{"uid":0}}`,
			true,
		},
		{"nothing to drop", `{"process":{"capabilities":{"bounding":["CAP_CHOWN"]}}}`, `{"process":{"capabilities":{"bounding":["CAP_CHOWN"]}}}`, false},
		{"no capabilities", `{"process":{"args":["sh"]}}`, `{"process":{"args":["sh"]}}`, false},
		{"null capabilities", `{"capabilities":null}`, `{"capabilities":null}`, false},
		{"large numbers keep their digits", `{"process":{"capabilities":{"bounding":["CAP_BPF"]}},"limit":9223372036854775807}`, `{"process":{"capabilities":{"bounding":[]}},"limit":9223372036854775807}`, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, changed, err := Edit([]byte(tc.in), allowed)
			if err != nil {
				t.Fatal(err)
			}
			if changed != tc.changed {
				t.Errorf("changed = %v, want %v", changed, tc.changed)
			}
			if !changed && string(got) != tc.in {
				t.Errorf("an unchanged document was written anew: %s", got)
			}
			if !sameJSON(t, got, []byte(tc.want)) {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestEditRefusesWhatIsNotJSON(t *testing.T) {
	for _, in := range []string{"", "[]", "{", `{"capabilities":[]}`, `{"process":7}`} {
		if _, _, err := Edit([]byte(in), nil); err == nil {
			t.Errorf("Edit(%q) gave no error", in)
		}
	}
}

func TestEditFileKeepsFileWithNothingToDrop(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	const content = "{ \"process\" : {\"capabilities\":{\"bounding\":[\"CAP_CHOWN\"]}} }\n"
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := EditFile(path, []string{"CAP_CHOWN"}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Errorf("file is now %q (%v)", got, err)
	}
	if err := EditFile(path, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || strings.Contains(string(got), "CHOWN") {
		t.Errorf("file is now %q (%v)", got, err)
	}
	if err := EditFile(path+".absent", nil); err == nil {
		t.Error("no error for a file that is not there")
	}
}

func TestBounding(t *testing.T) {
	status := func(mask string) string { return "Name:\tx\nCapEff:\t0\nCapBnd:\t" + mask + "\nCapAmb:\t0\n" }
	allowed, lacking, err := bounding(status("000001ffffffffff"), 40)
	if err != nil || lacking || len(allowed) != 41 || allowed[40] != "CAP_CHECKPOINT_RESTORE" {
		t.Errorf("full set: %d capabilities, lacking %v, %v", len(allowed), lacking, err)
	}
	allowed, lacking, err = bounding(status("000001fffeffffff"), 40)
	if err != nil || !lacking || len(allowed) != 40 {
		t.Errorf("set without SYS_RESOURCE: %d capabilities, lacking %v, %v", len(allowed), lacking, err)
	}
	for _, a := range allowed {
		if a == "CAP_SYS_RESOURCE" {
			t.Error("CAP_SYS_RESOURCE is in a set whose bit 24 is clear")
		}
	}
	// A kernel that knows fewer capabilities lacks none.
	if _, lacking, err := bounding(status("0000003fffffffff"), 37); err != nil || lacking {
		t.Errorf("old kernel: lacking %v, %v", lacking, err)
	}
	for _, bad := range []string{"", "CapBnd:\tzz\n"} {
		if _, _, err := bounding(bad, 40); err == nil {
			t.Errorf("bounding(%q) gave no error", bad)
		}
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	for raw, to := range map[*[]byte]*any{&a: &x, &b: &y} {
		d := json.NewDecoder(strings.NewReader(string(*raw)))
		d.UseNumber()
		if err := d.Decode(to); err != nil {
			t.Fatal(err)
		}
	}
	return reflect.DeepEqual(x, y)
}
