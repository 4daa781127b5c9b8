package target

import (
	"github.com/fairlead-cni/fairlead/spec"
)

// request returns the configuration that the plugin would get on stdin, without prevResult.
func (t *Target) request(conf *spec.Conf, version spec.Version) ([]byte, error) {
	o := conf.Object
	if err := o.Set("name", t.Name); err != nil {
		return nil, err
	}
	if err := o.Set("cniVersion", version); err != nil {
		return nil, err
	}
	given := map[string]any{}
	for name, value := range t.Capabilities {
		if conf.Capabilities[name] {
			given[name] = value
		}
	}
	if len(given) > 0 {
		if err := o.Set("runtimeConfig", given); err != nil {
			return nil, err
		}
	}
	return o.MarshalJSON()
}
