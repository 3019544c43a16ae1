/*
Copyright The Kubernetes Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package imagelayers

import (
	"math"
	"testing"
)

func TestParseExclusive(t *testing.T) {
	for value, want := range map[string]int64{"0": 0, "1": 1, "0012": 12, "9223372036854775807": math.MaxInt64} {
		if got, ok := ParseExclusive(value); !ok || got != want {
			t.Errorf("%q: %d, %v, want %d", value, got, ok, want)
		}
	}
	for _, value := range []string{"", " 1", "-1", "+1", "1.5", "0x10", "1_000", "9223372036854775808", "many"} {
		if got, ok := ParseExclusive(value); ok {
			t.Errorf("%q is taken for %d", value, got)
		}
	}
}
