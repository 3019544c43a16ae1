package publish

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Identity is the Node that an agent speaks for.
type Identity struct {
	Name string
	UID  types.UID
}

// IdentityOf returns the Node that a service account's token is bound to, as the apiserver
// wrote it into the token (since Kubernetes 1.30). The token is not verified: the apiserver
// does that, and lets the agent write for that Node only.
func IdentityOf(token string) (Identity, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return Identity{}, errors.New("the token is not one of a service account")
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Identity{}, fmt.Errorf("the token is not one of a service account: %w", err)
	}
	var parsed struct {
		Kubernetes struct {
			Node *struct {
				Name string    `json:"name"`
				UID  types.UID `json:"uid"`
			} `json:"node"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(claims, &parsed); err != nil {
		return Identity{}, fmt.Errorf("the claims of the token: %w", err)
	}
	node := parsed.Kubernetes.Node
	if node == nil || node.Name == "" || node.UID == "" {
		return Identity{}, errors.New("the token is not bound to a node: run the agent in a pod, on Kubernetes 1.30 or later, with the token that the kubelet gives it")
	}
	return Identity{node.Name, node.UID}, nil
}

// TokenIn returns the token in a file.
func TokenIn(path string) (string, error) {
	token, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token of the service account: %w", err)
	}
	return strings.TrimSpace(string(token)), nil
}
