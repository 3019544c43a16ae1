package main

import (
	"strings"
	"testing"
)

// TestProxies: each is for one host, and an error does not show a password.
func TestProxies(t *testing.T) {
	o := runOptions{proxies: []string{"docker.io=http://ann:s3cret@proxy.example.com:3128", "registry.example.com:5000=https://proxy.example.com"}}
	found, err := o.proxiesByHost()
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || found["docker.io"].Host != "proxy.example.com:3128" || found["registry.example.com:5000"].Scheme != "https" {
		t.Errorf("proxies %v", found)
	}
	for _, value := range []string{"http://ann:s3cret@proxy.example.com:3128", "docker.io=ann:s3cret@proxy", "docker.io=http://ann:s3cret@pro xy", "docker.io="} {
		o := runOptions{proxies: []string{value}}
		if _, err := o.proxiesByHost(); err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "--proxy, value 1") {
			t.Errorf("%s: error %v", value, err)
		}
	}
}
