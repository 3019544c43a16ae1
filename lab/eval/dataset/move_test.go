package dataset

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

func TestReadMoves(t *testing.T) {
	for name, tc := range map[string]struct{ input, err string }{
		"empty":       {"", "no events"},
		"no JSON":     {"move", "line 1 is not an event"},
		"no time":     {`{"tag":"a:1","imageID":"` + validDigest + `"}`, `line 1: "t" is missing`},
		"bad time":    {`{"t":"yesterday","tag":"a:1","imageID":"` + validDigest + `"}`, "line 1 is not an event"},
		"no tag":      {`{"t":"2017-01-01T00:00:00Z","imageID":"` + validDigest + `"}`, `line 1: "tag" "" is not a name with a tag`},
		"only a port": {`{"t":"2017-01-01T00:00:00Z","tag":"host:5000/a","imageID":"` + validDigest + `"}`, "is not a name with a tag"},
		"imageID":     {"\n" + `{"t":"2017-01-01T00:00:00Z","tag":"a:1","imageID":"x"}`, `line 2: a:1: imageID "x": invalid`},
		"long line":   {strings.Repeat(" ", maxLine+1), "line 1: bufio.Scanner: token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			moves, err := ReadMoves(strings.NewReader(tc.input))
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v and error %v, want error %q", moves, err, tc.err)
			}
		})
	}
}

// Moves are sorted by time, from a plain or a compressed file.
func TestLoadMoves(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2017, 1, 1, 0, 0, s, 0, time.UTC) }
	moves := []Move{{at(2), "b:1", validDigest}, {at(1), "c:1", validDigest}, {at(1), "a:1", validDigest}}
	var text bytes.Buffer
	for _, move := range moves {
		if err := json.NewEncoder(&text).Encode(move); err != nil {
			t.Fatal(err)
		}
	}
	plain := filepath.Join(t.TempDir(), "moves.jsonl")
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	if _, err := writer.Write(text.Bytes()); err != nil || writer.Close() != nil {
		t.Fatal("cannot compress")
	}
	for name, content := range map[string][]byte{plain: text.Bytes(), plain + ".gz": compressed.Bytes()} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		read, err := LoadMoves(name)
		if want := []Move{moves[1], moves[2], moves[0]}; err != nil || !reflect.DeepEqual(read, want) {
			t.Errorf("%s: got %v, %v, want %v", name, read, err, want)
		}
	}
}

func TestVersions(t *testing.T) {
	id := func(s string) string { return digest.FromString(s).String() }
	history := History{
		Images: []Image{{Image: "a:1", ImageID: id("1")}, {Image: "a:1", ImageID: id("2")}, {Image: "a:2", ImageID: id("2")}, {Image: "no ID"}},
		Moves:  []Move{{Tag: "a:1", ImageID: id("2")}, {Tag: "a:1", ImageID: id("lost")}, {Tag: "a:0", ImageID: id("1")}},
	}
	versions, dropped := history.Versions()
	want := []Version{{history.Moves[0], &history.Images[1]}, {history.Moves[2], &history.Images[0]}}
	if dropped != 1 || !reflect.DeepEqual(versions, want) {
		t.Errorf("got %v and %d dropped", versions, dropped)
	}
}

func TestAt(t *testing.T) {
	id := func(s string) string { return digest.FromString(s).String() }
	day := func(n int) time.Time { return time.Date(2017, 1, n, 0, 0, 0, 0, time.UTC) }
	history := History{
		Images: []Image{{Image: "x/a:1", ImageID: id("1"), Aliases: []string{"x/a:latest"}}, {Image: "x/a:1", ImageID: id("2")}},
		Moves: []Move{
			{day(1), "b:1", id("1")}, {day(2), "a:1", id("1")}, {day(2), "lost:1", id("lost")},
			{day(3), "a:1", id("2")}, {day(4), "c:1", id("2")},
		},
	}
	for n, want := range map[int]string{0: "", 1: "b:1 1", 2: "a:1 1, b:1 1", 3: "a:1 2, b:1 1", 9: "a:1 2, b:1 1, c:1 2"} {
		var got []string
		for _, image := range history.At(day(n)) {
			version := "1"
			if image.ImageID == id("2") {
				version = "2"
			}
			if image.Aliases != nil {
				t.Errorf("%s has other names: %v", image.Image, image.Aliases)
			}
			got = append(got, image.Image+" "+version)
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("day %d: %q, want %q", n, text, want)
		}
	}
}
