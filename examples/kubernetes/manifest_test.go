package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"sigs.k8s.io/yaml"

	"github.com/tenure-go/tenure"
	"github.com/tenure-go/tenure/statushttp"
)

type probe struct {
	HTTPGet struct{ Path, Port string }
}

type deployment struct {
	Kind string
	Spec struct {
		Replicas int
		Template struct {
			Spec struct {
				TerminationGracePeriodSeconds int
				Containers                    []struct {
					Args  []string
					Env   []struct{ Name, Value string }
					Ports []struct {
						Name          string
						ContainerPort int
					}
					LivenessProbe, ReadinessProbe probe
				}
			}
		}
	}
}

// What the manifest says fits to the program.
func TestManifestFits(t *testing.T) {
	data, err := os.ReadFile("deployment.yaml")
	require.NoError(t, err)
	var d deployment
	require.NoError(t, yaml.Unmarshal([]byte(strings.Split(string(data), "\n---\n")[0]), &d))
	require.Equal(t, "Deployment", d.Kind)
	require.Greater(t, d.Spec.Replicas, 1)
	pod := d.Spec.Template.Spec
	require.Greater(t, time.Duration(pod.TerminationGracePeriodSeconds)*time.Second, stopTimeout+shutdownTimeout)
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	require.Equal(t, []string{"-listen", ":8080", "-endpoints"}, c.Args[:3])
	require.Equal(t, 8080, c.Ports[0].ContainerPort)
	require.Equal(t, "POD_ADDRESS", c.Env[2].Name)
	require.Equal(t, "$(POD_IP):8080", c.Env[2].Value)

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://127.0.0.1:1"}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer client.Close()
	monitor := statushttp.New("")
	elector, err := tenure.New(client, "/leader", &tenure.Options{Hooks: monitor.Hooks(nil)})
	require.NoError(t, err)
	for probe, want := range map[probe]int{c.LivenessProbe: http.StatusOK, c.ReadinessProbe: http.StatusServiceUnavailable} {
		require.Equal(t, c.Ports[0].Name, probe.HTTPGet.Port)
		answer := httptest.NewRecorder()
		handler(elector, monitor).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, probe.HTTPGet.Path, nil))
		require.Equal(t, want, answer.Code, "%s of a process that has not begun", probe.HTTPGet.Path)
		require.Equal(t, "idle\n", answer.Body.String())
	}
}
