package support

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-cni/fairlead/attach"
	"github.com/fairlead-cni/fairlead/internal/command/cli/attached"
	"github.com/fairlead-cni/fairlead/internal/command/cli/doctor"
	"github.com/fairlead-cni/fairlead/internal/command/cli/inspect"
	"github.com/fairlead-cni/fairlead/internal/command/support"
)

// containers adds the network and the output of inspect of at most mostContainers containers: first those that doctor
// has a finding about, then others in the order of the cache. The bundle names the containers that it leaves out.
func (c *collector) containers(diagnosis []byte) {
	faulty := faultyOwners(diagnosis)
	byContainer := map[string][]attach.Cached{}
	var first, others []string
	for _, l := range c.All {
		if l.Network == attached.LoopbackNetwork {
			continue
		}
		if byContainer[l.ContainerID] == nil {
			others = append(others, l.ContainerID)
		}
		byContainer[l.ContainerID] = append(byContainer[l.ContainerID], l)
		if faulty[l.Owner().String()] && !slices.Contains(first, l.ContainerID) {
			first = append(first, l.ContainerID)
		}
	}
	withFault := len(first)
	others = slices.DeleteFunc(others, func(id string) bool { return slices.Contains(first, id) })
	all := append(first, others...)
	taken := all[:min(len(all), mostContainers)]

	for _, id := range taken {
		c.container(byContainer[id])
	}
	if left := all[len(taken):]; len(left) > 0 {
		c.left = fmt.Sprintf("the bundle has the network and inspect of %d of %d containers, those with findings of "+
			"doctor first; it leaves out %d, of which %d have findings", len(taken), len(all), len(left),
			max(withFault-len(taken), 0))
		c.bundle.Add(support.Part{Name: "containers/LEFT-OUT", About: c.left,
			Content: []byte(strings.Join(left, "\n") + "\n")})
	}
}

// container adds the network of a container, each of its namespaces once, and the output of inspect.
func (c *collector) container(of []attach.Cached) {
	id := attached.ShortID(of[0].ContainerID)
	seen := map[string]bool{}
	for _, l := range of {
		if l.Netns == "" || seen[l.Netns] || c.Gone(l) {
			continue
		}
		seen[l.Netns] = true
		c.network("containers/"+id, "container "+id, l.Netns)
	}
	c.part("containers/"+id+"/inspect.json", "the output of inspect for container "+id, func() ([]byte, error) {
		var b bytes.Buffer
		d := doctor.Of(c.App, c.Snapshot)
		d.Selected = of
		err := inspect.PrintJSON(&b, d)
		return b.Bytes(), err
	})
}

// faultyOwners returns the attachments, as NETWORK/CONTAINER/INTERFACE, that a document of doctor has findings about.
// It is empty if doctor did not finish.
func faultyOwners(diagnosis []byte) map[string]bool {
	var doc struct {
		Findings []struct {
			Containers []struct{ Container string }
		}
	}
	faulty := map[string]bool{}
	if json.Unmarshal(diagnosis, &doc) != nil {
		return faulty
	}
	for _, f := range doc.Findings {
		for _, c := range f.Containers {
			faulty[c.Container] = true
		}
	}
	return faulty
}
