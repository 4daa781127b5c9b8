package calls

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// Each member of a line is explained.
func TestFieldsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/log.md")
	if err != nil {
		t.Fatal(err)
	}
	line := reflect.TypeFor[Line]()
	for i := range line.NumField() {
		name, _, _ := strings.Cut(line.Field(i).Tag.Get("json"), ",")
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/log.md does not explain %s", name)
		}
	}
}
