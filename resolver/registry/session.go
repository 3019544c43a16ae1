package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	ggcr "github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"github.com/layer-locality/layer-locality/api/v1alpha1"
	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/resolver/registry/manifest"
)

// accepted are the media types of manifests and indexes.
var accepted = strings.Join([]string{
	string(types.OCIImageIndex),
	string(types.DockerManifestList),
	string(types.OCIManifestSchema1),
	string(types.DockerManifestSchema2),
}, ", ")

// session asks a source with one credential.
type session struct {
	client     *Client
	source     *source
	credential authn.AuthConfig
	// keychain that has the credential; nil if there is none.
	keychain authn.Keychain
}

// answer is a manifest or an index. After HEAD, it has only what the headers
// state.
type answer struct {
	digest      digest.Digest
	contentType string
	body        []byte
	// done has to be called when the body is no longer needed.
	done func()
}

// maxNested bounds how deep indexes in indexes are followed.
const maxNested = 3

// resolve asks for the reference. If that is an index, it also asks for the
// manifests of the platforms.
func (s *session) resolve(ctx context.Context, platforms []string) (*Resolution, error) {
	top, content, err := s.content(ctx, s.source.identifier)
	if err != nil {
		return nil, err
	}
	resolution := &Resolution{Digest: top.digest.String(), Index: content.Index}
	if !content.Index {
		resolution.Manifests = []v1alpha1.ImageManifestSpec{content.Spec(top.digest, "")}
		return resolution, nil
	}
	resolution.Manifests, err = s.chosen(ctx, content, platforms, maxNested)
	return resolution, err
}

// chosen asks for the manifests of an index for the platforms.
func (s *session) chosen(ctx context.Context, index *manifest.Content, platforms []string, deeper int) (found []v1alpha1.ImageManifestSpec, err error) {
	choices, err := index.Choose(platforms)
	var none *manifest.PlatformNotFound
	switch {
	case errors.As(err, &none):
		return nil, s.named(&Error{Reason: v1alpha1.ReasonPlatformNotFound, Err: text(nil, "%s", err)})
	case err != nil:
		return nil, s.named(invalidManifest("%s", err))
	}
	for _, c := range choices {
		child, content, err := s.content(ctx, c.Digest.String())
		switch {
		case err != nil:
			return nil, err
		case !content.Index:
			found = append(found, content.Spec(child.digest, c.Platform))
			continue
		case len(c.Nested) == 0:
			return nil, s.named(invalidManifest("the index names another index for %s: CRI-O does not follow it", c.Platform))
		case deeper == 0:
			return nil, s.named(invalidManifest("indexes in indexes are followed %d times", maxNested))
		}
		nested, err := s.chosen(ctx, content, c.Nested, deeper-1)
		if err != nil {
			return nil, err
		}
		for _, spec := range nested {
			if !slices.ContainsFunc(found, func(other v1alpha1.ImageManifestSpec) bool { return other.Digest == spec.Digest }) {
				found = append(found, spec)
			}
		}
	}
	return found, nil
}

// digest asks which digest the reference has.
func (s *session) digest(ctx context.Context) (string, error) {
	head, err := s.ask(ctx, http.MethodHead, s.source.identifier)
	switch e := asErrorOrNil(err); {
	case e != nil && !refusesHead(e.code):
		return "", err
	case e != nil, head.digest == "":
		// The distribution specification does not require the header.
		if head, err = s.get(ctx, s.source.identifier); err != nil {
			return "", err
		}
		head.done()
	}
	if s.source.byDigest && head.digest.String() != s.source.identifier {
		return "", s.named(invalidManifest("what was sent has not the digest that was asked for"))
	}
	return head.digest.String(), nil
}

// refusesHead reports whether an answer to HEAD may be about the method: some registries, and what protects them,
// answer so where GET works. 404 is an answer about the image: the distribution specification has it so, and containerd,
// which asks with HEAD first, pulls nothing then.
func refusesHead(code int) bool {
	return slices.Contains([]int{http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotImplemented}, code)
}

// content asks for a tag or digest and reads the answer.
func (s *session) content(ctx context.Context, identifier string) (*answer, *manifest.Content, error) {
	answer, err := s.get(ctx, identifier)
	if err != nil {
		return nil, nil, err
	}
	defer answer.done()
	content, err := manifest.Parse(answer.body, answer.contentType)
	if err != nil {
		return nil, nil, s.named(invalidManifest("%s", err))
	}
	return answer, content, nil
}

// get asks for the manifest itself, if the registry's quota has room for that.
func (s *session) get(ctx context.Context, identifier string) (*answer, error) {
	done, err := s.takeQuota(ctx, identifier)
	if err != nil {
		return nil, err
	}
	answer, err := s.ask(ctx, http.MethodGet, identifier)
	done(err != nil)
	return answer, err
}

// ask sends one request for a tag or digest, and a second one if what was remembered
// about the registry's authentication turns out to be out of date.
func (s *session) ask(ctx context.Context, method, identifier string) (*answer, error) {
	for again := true; ; {
		g, err := s.client.auth.authorize(ctx, s.source, s.credential)
		if err != nil {
			return nil, err
		}
		answer, challenge, err := s.send(ctx, g, method, identifier)
		if again && challenge != nil && s.client.auth.refused(ctx, s.source, s.credential, g, challenge) {
			again = false
			continue
		}
		// Not every registry answers 401 to a token that has expired: public.ecr.aws answers 400
		// (https://github.com/aws/containers-roadmap/issues/2835).
		if e := asErrorOrNil(err); again && e != nil && e.code == http.StatusBadRequest && g.tokenRemembered {
			s.client.auth.tokens.Remove(s.source.tokenKey(s.credential))
			again = false
			continue
		}
		return answer, err
	}
}

// ping asks a registry that wants a password whether it takes this one.
func (s *session) ping(ctx context.Context) error {
	g, err := s.client.auth.authorize(ctx, s.source, s.credential)
	if err != nil {
		return err
	}
	registry, err := s.source.registry()
	if err != nil {
		return err
	}
	x := &exchange{source: s.source, kind: kindPing, scheme: g.scheme(), host: registry.RegistryStr(), authorization: g.authorization}
	return s.client.transport.within(ctx, x, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s://%s%s/", x.scheme, x.host, s.source.path), nil)
		if err != nil {
			return err
		}
		resp, err := s.client.manifests.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return &ggcr.Error{StatusCode: resp.StatusCode}
		}
		return nil
	})
}

// send sends one request. If the registry itself answers 401, the headers of
// that answer are returned with the error.
func (s *session) send(ctx context.Context, g *grant, method, identifier string) (*answer, http.Header, error) {
	registry, err := s.source.registry()
	if err != nil {
		return nil, nil, err
	}
	x := &exchange{
		source:        s.source,
		kind:          kindManifest,
		anonymous:     s.credential == authn.AuthConfig{},
		scheme:        g.scheme(),
		host:          registry.RegistryStr(),
		authorization: g.authorization,
		ownToken:      s.credential.RegistryToken != "",
	}
	var found *answer
	var challenge http.Header
	err = s.client.transport.within(ctx, x, func(ctx context.Context) error {
		url := fmt.Sprintf("%s://%s%s/%s/manifests/%s%s", x.scheme, x.host, s.source.path, s.source.repository, identifier, s.source.query)
		req, err := http.NewRequestWithContext(ctx, method, url, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", accepted)
		begun := s.client.quotas.clock.Now()
		resp, err := s.client.manifests.Do(req)
		if err != nil {
			return err
		}
		if at(resp.Request.URL, x.host) {
			s.hearQuota(resp.StatusCode, resp.Header, begun)
		}
		done := func() { _ = resp.Body.Close() }
		// The rest of a body is read, within its limit, to keep the connection.
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			done()
			if resp.StatusCode == http.StatusUnauthorized && at(resp.Request.URL, x.host) {
				challenge = resp.Header
			}
			return &ggcr.Error{StatusCode: resp.StatusCode}
		}
		if err != nil {
			done()
			return err
		}
		found = &answer{contentType: resp.Header.Get("Content-Type"), body: body, done: done}
		if method == http.MethodHead {
			if said := digest.Digest(resp.Header.Get("Docker-Content-Digest")); imageref.ValidateDigest(said) == nil {
				found.digest = said
			}
		}
		return nil
	})
	if err != nil {
		return nil, challenge, err
	}
	if method == http.MethodGet {
		if found.digest, err = verify(found.body, identifier); err != nil {
			found.done()
			return nil, nil, s.named(err)
		}
	} else {
		found.done()
	}
	return found, nil, nil
}

// verify returns the digest of the body. It returns an error if identifier is a
// different digest. The digest that the registry states is not used.
func verify(body []byte, identifier string) (digest.Digest, error) {
	if !strings.Contains(identifier, ":") {
		return digest.FromBytes(body), nil
	}
	asked := digest.Digest(identifier)
	if asked.Algorithm().FromBytes(body) != asked {
		return "", invalidManifest("what was sent has not the digest that was asked for")
	}
	return asked, nil
}

// named adds the registry to an error about its answer.
func (s *session) named(err error) error {
	e := asError(err)
	e.Host = s.source.domain
	e.Err = text(e.Err, "registry %s: %s", s.source.domain, e.Err)
	return e
}
