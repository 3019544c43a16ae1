package suites

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestReadReport(t *testing.T) {
	const junit = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="CRI validation">
<testcase name="[It] [k8s.io] Image a" status="passed" time="1"></testcase>
<testcase name="[BeforeSuite]" status="passed"></testcase>
<testcase name="[It] [k8s.io] Image b" status="failed"><failure message="Expected &lt;x&gt;" type="failed"></failure></testcase>
<testcase name="[It] [k8s.io] Image c" status="panicked"><error message="nil"></error></testcase>
<testcase name="[It] [k8s.io] Image d" status="skipped"><skipped message="skipped - AppArmor is disabled"></skipped></testcase>
<testcase name="[It] [k8s.io] Image e" status="skipped"><skipped message="skipped"></skipped></testcase>
<testcase name="[AfterSuite]" status="timedout"><failure message="late"></failure></testcase>
</testsuite></testsuites>`
	path := filepath.Join(t.TempDir(), "junit.xml")
	if err := os.WriteFile(path, []byte(junit), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadReport(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Report{
		Passed:   []string{"[k8s.io] Image a"},
		Failed:   map[string]string{"[k8s.io] Image b": "failed: Expected <x>", "[k8s.io] Image c": "panicked: nil", "[AfterSuite]": "timedout: late"},
		Skipped:  map[string]string{"[k8s.io] Image d": "AppArmor is disabled"},
		Excluded: []string{"[k8s.io] Image e"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
