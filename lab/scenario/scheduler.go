package scenario

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/layer-locality/layer-locality/scheduler/placements"
)

// Rating is how the plugin rates one node; see scheduler/layerlocality.
// Sizes are compressed bytes.
type Rating struct {
	Node          string `json:"node"`
	Score         int64  `json:"score"`
	TotalBytes    int64  `json:"totalBytes"`
	PresentBytes  int64  `json:"presentBytes"`
	ArrivingBytes int64  `json:"arrivingBytes"`
	MissingBytes  int64  `json:"missingBytes"`
	PendingBytes  int64  `json:"pendingBytes"`
	// Has are those of the images that the node has, and from what that is known.
	Has []struct {
		Image string `json:"image"`
		By    string `json:"by"`
	} `json:"has"`
	Why string `json:"why"`
}

// Ratings has the ratings of all nodes.
type Ratings struct {
	Images []struct {
		Names []string `json:"names"`
		Known string   `json:"known"`
	} `json:"images"`
	Nodes []Rating `json:"nodes"`
}

// Node returns the rating of a node; ok is false if the plugin has none.
func (r *Ratings) Node(name string) (rating Rating, ok bool) {
	for _, rating := range r.Nodes {
		if rating.Node == name {
			return rating, true
		}
	}
	return Rating{}, false
}

// Rate asks the scheduler's debug endpoint how it rates all nodes for an image.
func (l *Lab) Rate(ctx context.Context, image string) (*Ratings, error) {
	body, err := l.Ask(ctx, cmp.Or(l.rater, l.Cluster.SchedulerURL())+"/debug/layerlocality?"+url.Values{"image": {image}, "profile": {l.profile}}.Encode())
	if err != nil {
		return nil, err
	}
	ratings := &Ratings{}
	if err := json.Unmarshal(body, ratings); err != nil {
		return nil, fmt.Errorf("debug endpoint of the scheduler: %w", err)
	}
	return ratings, nil
}

// Joined returns an error unless the scheduler has the layers of an image on a node from
// the node's name for it and an ImageManifest, as on stock nodes.
func (l *Lab) Joined(ctx context.Context, image, node string) error {
	ratings, err := l.Rate(ctx, image)
	if err != nil {
		return err
	}
	rating, _ := ratings.Node(node)
	for _, has := range rating.Has {
		if has.By == "manifest" && rating.MissingBytes == 0 {
			return nil
		}
	}
	return fmt.Errorf("the scheduler has of %s on %s: %+v", image, node, rating)
}

// IndexSize reads from the scheduler's metrics how much its index holds: nodes,
// images, names, layers, layer_nodes, reservations.
func (l *Lab) IndexSize(ctx context.Context) (map[string]int, error) {
	return l.metric(ctx, "scheduler_layerlocality_index_size", "of")
}

// Held reads from the scheduler's metrics how many pods were held for their images, by how
// that ended: known, timeout, gone.
func (l *Lab) Held(ctx context.Context) (map[string]int, error) {
	return l.metric(ctx, "scheduler_layerlocality_held_pods_total", "ended")
}

// HeldFor asks the scheduler's debug endpoint for how long it held a placed pod for its images.
func (l *Lab) HeldFor(ctx context.Context, pod string) (time.Duration, error) {
	body, err := l.Ask(ctx, l.Cluster.SchedulerURL()+"/debug/layerlocality?"+url.Values{"placements": {metav1.NamespaceDefault + "/" + pod}}.Encode())
	if err != nil {
		return 0, err
	}
	var answer placements.Answer
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, fmt.Errorf("debug endpoint of the scheduler: %w", err)
	}
	if len(answer.Placements) == 0 {
		return 0, fmt.Errorf("the scheduler does not remember that it placed pod %s", pod)
	}
	return time.Duration(answer.Placements[0].HeldMilliseconds) * time.Millisecond, nil
}

// metric reads a metric of the scheduler that has one label.
func (l *Lab) metric(ctx context.Context, name, label string) (map[string]int, error) {
	body, err := l.Ask(ctx, l.Cluster.SchedulerURL()+"/metrics")
	if err != nil {
		return nil, err
	}
	return metric(string(body), name, label)
}

// MetricOf reads a metric that has one label of a program at a URL, by the values of the
// label.
func (l *Lab) MetricOf(ctx context.Context, url, name, label string) (map[string]int, error) {
	body, err := l.Ask(ctx, url+"/metrics")
	if err != nil {
		return nil, err
	}
	return metric(string(body), name, label)
}

// metric reads a metric in the text format: the sum for each value of a label, in whole
// numbers.
func metric(text, name, label string) (map[string]int, error) {
	values, err := floats(text, name, label)
	if err != nil {
		return nil, err
	}
	whole := map[string]int{}
	for key, value := range values {
		whole[key] = int(value)
	}
	return whole, nil
}

// floats reads a metric in the text format: the sum for each value of a label.
func floats(text, name, label string) (map[string]float64, error) {
	values := map[string]float64{}
	line := regexp.MustCompile(`(?m)^` + name + `\{(?:\w+="[^"]*",)*` + label + `="([\w-]+)"(?:,\w+="[^"]*")*\} (\S+)$`)
	for _, found := range line.FindAllStringSubmatch(text, -1) {
		value, err := strconv.ParseFloat(found[2], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", found[0], err)
		}
		values[found[1]] += value
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("the metrics have no %s", name)
	}
	return values, nil
}

// Ask sends a GET to a secure port of the control plane, with the rights of an admin.
func (l *Lab) Ask(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := l.secure.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s: %s", request.URL, response.Status, body)
	}
	return body, nil
}

// LogScores is an argument of kube-scheduler that makes it log the scores that
// Scores reads.
const LogScores = "--vmodule=schedule_one=10"

// Scores reads a plugin's scores of the nodes for a pod, times the plugin's
// weight, from the scheduler's log; or those of an extender, by its urlPrefix, as it
// answered them. There are none if it did not score that pod.
func (l *Lab) Scores(pod, plugin string) (map[string]int64, error) {
	log, err := os.ReadFile(l.Cluster.Scheduler().Log())
	if err != nil {
		return nil, err
	}
	return scores(string(log), pod, plugin)
}

var scoreLine = regexp.MustCompile(`"(?:Plugin|Extender) scored node for pod" .*\bpod="default/([^"]+)" (?:plugin|extender)="([^"]+)" node="([^"]+)" score=(-?\d+)`)

func scores(log, pod, plugin string) (map[string]int64, error) {
	found := map[string]int64{}
	for line := range strings.Lines(log) {
		fields := scoreLine.FindStringSubmatch(line)
		if fields == nil || fields[1] != pod || fields[2] != plugin {
			continue
		}
		score, err := strconv.ParseInt(fields[4], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		found[fields[3]] = score
	}
	return found, nil
}
