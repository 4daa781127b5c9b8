package sticky

import (
	"encoding/json"
	"errors"
	"time"
)

// A Duration is "30s", or a number of seconds.
type Duration struct {
	d   time.Duration
	set bool
}

// Or returns the duration, or another one if the configuration says none.
func (d Duration) Or(otherwise time.Duration) time.Duration {
	if !d.set {
		return otherwise
	}
	return d.d
}

// UnmarshalJSON reads either form.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	var err error
	switch v := v.(type) {
	case string:
		if v == "" {
			return nil // the default, as everywhere
		}
		d.d, err = time.ParseDuration(v)
	case float64:
		v = min(v, 1e9) // a Duration ends before 300 years do
		d.d = time.Duration(v * float64(time.Second))
	default:
		err = errors.New("neither")
	}
	if err != nil || d.d < 0 {
		return errors.New(`want a duration such as "30s", or seconds`)
	}
	d.set = true
	return nil
}
