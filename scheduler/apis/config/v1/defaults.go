package v1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/layer-locality/layer-locality/scheduler/apis/config"
)

// The defaults of the arguments. The v1 types document their meaning.
const (
	DefaultMinImageBytes       int64 = 100_000_000
	DefaultUnknownImageBytes   int64 = 100_000_000
	DefaultLoadPenalty         int32 = 6
	DefaultNoRequestPenalty    int32 = 3
	DefaultLinkPenalty         int32 = 100
	DefaultMaxWaitingPods      int32 = 10
	DefaultJoinsDownloads            = false
	DefaultLayerReuse                = config.ReuseByDigest
	DefaultNodeLayers                = true
	DefaultArrivalTimeout            = 10 * time.Minute
	DefaultReportTimeout             = 2 * time.Minute
	DefaultNodeStatusMaxImages int32 = 50
	DefaultUnlistedTimeout           = 24 * time.Hour
	DefaultWaitForManifest           = time.Second
	DefaultUnqualifiedRegistry       = "docker.io"
)

func addDefaultingFuncs(scheme *runtime.Scheme) error {
	return RegisterDefaults(scheme)
}

// SetDefaults_LayerLocalityArgs fills in what is not set.
func SetDefaults_LayerLocalityArgs(args *LayerLocalityArgs) { //nolint:revive // the generator asks for this name
	setDefault(&args.MinImageBytes, DefaultMinImageBytes)
	setDefault(&args.UnknownImageBytes, DefaultUnknownImageBytes)
	setDefault(&args.LoadPenalty, DefaultLoadPenalty)
	setDefault(&args.NoRequestPenalty, DefaultNoRequestPenalty)
	setDefault(&args.LinkPenalty, DefaultLinkPenalty)
	setDefault(&args.MaxWaitingPods, DefaultMaxWaitingPods)
	setDefault(&args.JoinsDownloads, DefaultJoinsDownloads)
	setDefault(&args.LayerReuse, DefaultLayerReuse)
	setDefault(&args.NodeLayers, DefaultNodeLayers)
	setDefault(&args.ArrivalTimeout, metav1.Duration{Duration: DefaultArrivalTimeout})
	setDefault(&args.ReportTimeout, metav1.Duration{Duration: DefaultReportTimeout})
	setDefault(&args.NodeStatusMaxImages, DefaultNodeStatusMaxImages)
	setDefault(&args.UnlistedTimeout, metav1.Duration{Duration: DefaultUnlistedTimeout})
	setDefault(&args.WaitForManifest, metav1.Duration{Duration: DefaultWaitForManifest})
	if args.UnqualifiedRegistries == nil {
		args.UnqualifiedRegistries = []string{DefaultUnqualifiedRegistry}
	}
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = ptr.To(value)
	}
}
