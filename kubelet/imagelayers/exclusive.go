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

import "strconv"

// ExclusiveAnnotation is the name of an image annotation with the number of bytes
// that are freed when the image is removed, and no other: those of layers that
// nothing else on the node needs. The value is a decimal number.
const ExclusiveAnnotation = "imageExclusiveBytes"

// ParseExclusive returns the value of the annotation. What is not valid is as good
// as none: it must not keep the kubelet from freeing space.
func ParseExclusive(value string) (bytes int64, ok bool) {
	// ParseUint, unlike ParseInt, accepts no sign.
	n, err := strconv.ParseUint(value, 10, 63)
	return int64(n), err == nil
}
