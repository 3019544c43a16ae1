package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// flow makes a small clone with the script of lab/demos and what it calls, and programs in place of the others, runs it,
// and returns what it prints and the commands among that.
func flow(t *testing.T, clone string, programs map[string]string, args ...string) (printed string, steps []string, err error) {
	t.Helper()
	for _, path := range []string{args[0], "lab/demos/steps.sh", "kind/lib.sh", "scripts/lib.sh", "versions.env", "go.mod"} {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(clone, path), string(text))
	}
	for path, text := range programs {
		write(t, filepath.Join(clone, path), "#!/bin/bash -e\nnode="+clone+"/node\n"+text)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(clone, args[0]), args[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(clone, "bin")+":"+os.Getenv("PATH"), "LINE=", "KIND_EXPERIMENTAL_PROVIDER=")
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			steps = append(steps, strings.TrimSpace(command))
		}
	}
	return string(out), steps, err
}

// What crictl prints of a stock CRI-O and of ours; the flows take them for the programs.
const (
	stockCRIO = `{"images": [{"repoTags": ["one"], "spec": {"annotations": {}}}]}`
	ourCRIO   = `{"images": [{"repoTags": ["one"], "spec": {"annotations": {"imageLayer.sha256:1": "7"}}}]}`
)

// TestNixKind runs lab/demos/nix-kind.sh with programs in place of Nix and docker: it lists images with the stock CRI-O, with
// ours and with the stock one again, which is there at the end also when something fails.
func TestNixKind(t *testing.T) {
	const ready = "timeout 60 sh -c 'until docker exec n crictl info >/dev/null 2>&1; do sleep 1; done'"
	const list = "docker exec n crictl images -o json | jq -c '.images[] | [.repoTags, .spec.annotations]'"
	want := []string{
		list,
		"nix build .#crio --out-link _out/crio",
		"docker exec n cp -a /usr/bin/crio /usr/bin/crio.stock",
		"docker cp _out/crio/bin/crio n:/usr/bin/crio.new",
		"docker exec n mv /usr/bin/crio.new /usr/bin/crio",
		"docker exec n systemctl restart crio",
		ready, list,
		"docker exec n mv /usr/bin/crio.stock /usr/bin/crio",
		"docker exec n systemctl restart crio",
		ready, list,
		"rm _out/crio",
	}
	for name, test := range map[string]struct{ before, built, fails string }{
		"as it should be":        {before: stockCRIO, built: ourCRIO},
		"ours is there already":  {before: ourCRIO, built: ourCRIO, fails: "CRI-O reports layers, want none"},
		"what is built is stock": {before: stockCRIO, built: stockCRIO, fails: "CRI-O reports none, want layers"},
	} {
		t.Run(name, func(t *testing.T) {
			clone := t.TempDir()
			write(t, filepath.Join(clone, "node/usr/bin/crio"), test.before)
			write(t, filepath.Join(clone, "node/running"), test.before)
			write(t, filepath.Join(clone, "result/bin/crio"), test.built)
			printed, steps, err := flow(t, clone, map[string]string{
				"bin/nix": `ln -s ../result "$4"`,
				"bin/docker": `
case "$1 $3" in
"exec sh") echo /usr/bin/crio ;;
"exec cp") cp -a "$node$5" "$node$6" ;;
"exec mv") mv "$node$4" "$node$5" ;;
"exec systemctl") cp "$node/usr/bin/crio" "$node/running" ;;
"exec crictl") [ "$4" = info ] || cat "$node/running" ;;
"cp "*) cp "$2" "$node${3#n:}" ;;
esac`,
			}, "lab/demos/nix-kind.sh", "n")
			if (err != nil) != (test.fails != "") || !strings.Contains(printed, test.fails) {
				t.Errorf("%v, want %q:\n%s", err, test.fails, printed)
			}
			if test.fails == "" && (!slices.Equal(steps, want) || strings.Count(printed, "imageLayer.sha256:1") != 1) {
				t.Errorf("it runs %q, want %q:\n%s", steps, want, printed)
			}
			for _, file := range []string{"usr/bin/crio", "running"} {
				if text, err := os.ReadFile(filepath.Join(clone, "node", file)); string(text) != test.before {
					t.Errorf("at the end, %s is %q, %v", file, text, err)
				}
			}
			if left, err := filepath.Glob(filepath.Join(clone, "node/usr/bin/crio?*")); err != nil || len(left) > 0 {
				t.Errorf("%q are left in the node: %v", left, err)
			}
		})
	}
}

// TestRPMImage runs lab/demos/rpm-image.sh with programs in place of podman and of what builds packages and image: nodes of the
// base, of the image and of the base again list images, and nothing is left, also when something fails.
func TestRPMImage(t *testing.T) {
	const list = "podman exec layer-locality-node crictl images -o json | jq -c '.images[] | [.repoTags, .spec.annotations]'"
	for name, test := range map[string]struct{ base, built, fails string }{
		"as it should be":        {base: stockCRIO, built: ourCRIO},
		"the base is ours":       {base: ourCRIO, built: ourCRIO, fails: "CRI-O reports layers, want none"},
		"the packages are stock": {base: stockCRIO, built: stockCRIO, fails: "CRI-O reports none, want layers"},
		"the image is not built": {base: stockCRIO, fails: "this base is refused"},
	} {
		t.Run(name, func(t *testing.T) {
			clone := t.TempDir()
			write(t, filepath.Join(clone, "node/base"), test.base)
			build := `echo "this base is refused" >&2; exit 1`
			if test.built != "" {
				build = `[ "$*" = "--base base --image localhost/layer-locality/node --tool podman" ] && printf %s '` + test.built + `' >"$node/own"`
			}
			printed, steps, err := flow(t, clone, map[string]string{
				"rpm/rpms.sh":             `[ "$*" = "cri-o openshift-kubelet" ]`,
				"okd-machine-os/build.sh": build,
				"bin/podman": `
case "$1 $2" in
"run "*)
  [ ! -e "$node/running" ]
  touch "$node/volume"
  case " $* " in
  *" base crio "*) cp "$node/base" "$node/running" ;;
  *" localhost/layer-locality/node crio "*) cp "$node/own" "$node/running" ;;
  *) false ;;
  esac ;;
"exec "*) case "$3 $4" in "crictl images") cat "$node/running" ;; esac ;;
"rm "*) rm -f "$node/running" ;;
"volume rm") rm -f "$node/volume" ;;
"rmi "*) rm -f "$node/own" ;;
esac`,
			}, "lab/demos/rpm-image.sh", "base", "one")
			if (err != nil) != (test.fails != "") || !strings.Contains(printed, test.fails) {
				t.Errorf("%v, want %q:\n%s", err, test.fails, printed)
			}
			if test.fails == "" {
				if strings.Count(printed, "imageLayer.sha256:1") != 1 || len(steps) != 17 || !slices.Contains(steps, "podman exec layer-locality-node crictl pull one") {
					t.Errorf("it runs %q:\n%s", steps, printed)
				}
				if lists := slices.DeleteFunc(slices.Clone(steps), func(step string) bool { return step != list }); len(lists) != 3 {
					t.Errorf("it lists images %d times, want 3", len(lists))
				}
			}
			left, err := os.ReadDir(filepath.Join(clone, "node"))
			if err != nil || len(left) != 1 {
				t.Errorf("%v is left beside the base: %v", left, err)
			}
		})
	}
}
