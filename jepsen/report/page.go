package report

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"time"

	"zamok/jepsen/check"
)

var (
	//go:embed timeline.html
	pageText string
	//go:embed timeline.css
	pageStyle string
	//go:embed timeline.js
	pageScript string
)

// render writes the page. What comes from a run is either text of the template, which escapes it, or JSON,
// in which encoding/json leaves no character that a page could take for markup; the script makes text of it.
func render(w io.Writer, s *Summary, t *timeline) error {
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	page, err := template.New("timeline").Funcs(template.FuncMap{
		"short":   func(d time.Duration) string { return roundForDisplay(d).String() },
		"count":   func(n map[check.Outcome]int, of string) int { return n[check.Outcome(of)] },
		"seconds": func(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) },
	}).Parse(pageText)
	if err != nil {
		return err
	}
	return page.Execute(w, struct {
		*Summary
		Style  template.CSS
		Script template.JS
		Data   template.JS
	}{s, template.CSS(pageStyle), template.JS(pageScript), template.JS(data)})
}
