// Package validation checks the arguments of the plugins.
package validation

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distribution/reference"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/layer-locality/layer-locality/imageref"
	"github.com/layer-locality/layer-locality/scheduler/apis/config"
)

// Upper limits of the arguments. Sizes are compressed bytes.
const (
	maxBytes       = 1 << 40
	maxLoadPenalty = 100
	maxLinkPenalty = 1000
	maxWaitingPods = 100_000
	maxTimeout     = 24 * time.Hour
	maxWait        = time.Minute
	maxListed      = 1000
	maxUnlisted    = 720 * time.Hour
	maxNames       = 1000
	maxRegistries  = 16
	maxLocations   = 16
)

// LayerLocalityArgs returns one error with everything that is wrong with the
// arguments. Every message names the field and its valid values.
func LayerLocalityArgs(args *config.LayerLocalityArgs) error {
	var errs field.ErrorList
	between := func(name string, value, low, high int64) {
		if value < low || value > high {
			errs = append(errs, field.Invalid(field.NewPath(name), value,
				"must be between "+strconv.FormatInt(low, 10)+" and "+strconv.FormatInt(high, 10)))
		}
	}
	between("minImageBytes", args.MinImageBytes, 1, maxBytes)
	between("unknownImageBytes", args.UnknownImageBytes, 1, maxBytes)
	between("loadPenalty", int64(args.LoadPenalty), 0, maxLoadPenalty)
	between("noRequestPenalty", int64(args.NoRequestPenalty), 0, maxLoadPenalty)
	between("linkPenalty", int64(args.LinkPenalty), 0, maxLinkPenalty)
	between("maxWaitingPods", int64(args.MaxWaitingPods), 0, maxWaitingPods)

	if reuse := []string{config.ReuseByDigest, config.ReuseInChains}; !slices.Contains(reuse, args.LayerReuse) {
		errs = append(errs, field.NotSupported(field.NewPath("layerReuse"), args.LayerReuse, reuse))
	}
	between("nodeStatusMaxImages", int64(args.NodeStatusMaxImages), 0, maxListed)

	timeout := func(name string, value time.Duration) {
		if value < time.Second || value > maxTimeout {
			errs = append(errs, field.Invalid(field.NewPath(name), value.String(), "must be between 1s and 24h"))
		}
	}
	timeout("arrivalTimeout", args.ArrivalTimeout.Duration)
	timeout("reportTimeout", args.ReportTimeout.Duration)

	if keep := args.UnlistedTimeout.Duration; keep < 0 || keep > maxUnlisted {
		errs = append(errs, field.Invalid(field.NewPath("unlistedTimeout"), keep.String(), "must be between 0s and 720h"))
	}
	if wait := args.WaitForManifest.Duration; wait < 0 || wait > maxWait {
		errs = append(errs, field.Invalid(field.NewPath("waitForManifest"), wait.String(), "must be between 0s and 1m"))
	}

	errs = append(errs, names(args)...)
	return errs.ToAggregate()
}

func names(args *config.LayerLocalityArgs) field.ErrorList {
	var errs field.ErrorList
	tooMany := func(path *field.Path, n, limit int) bool {
		if n > limit {
			errs = append(errs, field.TooMany(path, n, limit))
		}
		return n > limit
	}

	path, seen := field.NewPath("shortNames"), sets.New[string]()
	if !tooMany(path, len(args.ShortNames), maxNames) {
		for i, short := range args.ShortNames {
			at := path.Index(i)
			if imageref.ValidateAlias(short.Name) != nil {
				errs = append(errs, field.Invalid(at.Child("name"), short.Name, "must be a name without registry, tag and digest, such as \"fedora\" or \"opensuse/tumbleweed\""))
			} else if seen.Has(short.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), short.Name))
			}
			seen.Insert(short.Name)
			errs = append(errs, repository(at.Child("repository"), short.Repository)...)
		}
	}

	path, seen = field.NewPath("unqualifiedRegistries"), sets.New[string]()
	if len(args.UnqualifiedRegistries) == 0 {
		errs = append(errs, field.Required(path, "leave it out for docker.io"))
	}
	if !tooMany(path, len(args.UnqualifiedRegistries), maxRegistries) {
		for i, registry := range args.UnqualifiedRegistries {
			if strings.Contains(registry, "/") || !isRepository(registry+"/library/x") {
				errs = append(errs, field.Invalid(path.Index(i), registry, "must be the host of a registry, such as \"quay.io\" or \"localhost:5000\""))
			} else if seen.Has(registry) {
				errs = append(errs, field.Duplicate(path.Index(i), registry))
			}
			seen.Insert(registry)
		}
	}

	path, seen = field.NewPath("mirrors"), sets.New[string]()
	if !tooMany(path, len(args.Mirrors), maxNames) {
		for i, mirror := range args.Mirrors {
			at := path.Index(i)
			errs = append(errs, location(at.Child("prefix"), mirror.Prefix)...)
			if seen.Has(mirror.Prefix) {
				errs = append(errs, field.Duplicate(at.Child("prefix"), mirror.Prefix))
			}
			seen.Insert(mirror.Prefix)
			if len(mirror.Locations) == 0 {
				errs = append(errs, field.Required(at.Child("locations"), "name at least one mirror"))
			}
			if !tooMany(at.Child("locations"), len(mirror.Locations), maxLocations) {
				seen := sets.New[string]()
				for j, l := range mirror.Locations {
					path := at.Child("locations").Index(j)
					errs = append(errs, location(path, l)...)
					if seen.Has(l) {
						errs = append(errs, field.Duplicate(path, l))
					}
					seen.Insert(l)
				}
			}
		}
	}
	return errs
}

func repository(path *field.Path, value string) field.ErrorList {
	if strings.Contains(value, "/") && isRepository(value) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, "must be a repository with its registry, such as \"quay.io/team/app\", without tag and digest")}
}

func location(path *field.Path, value string) field.ErrorList {
	if isRepository(value + "/library/x") {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, "must be a registry, or a registry and the beginning of a repository, such as \"quay.io/team\"")}
}

// isRepository reports whether value is a repository that starts with a
// registry, without tag and digest.
func isRepository(value string) bool {
	named, err := reference.ParseNormalizedNamed(value)
	return err == nil && reference.IsNameOnly(named) && named.Name() == value
}
