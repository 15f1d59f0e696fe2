package servers

import "testing"

// Chromium returns the path of the browser.
func Chromium(t testing.TB) string {
	t.Helper()
	return find(t, "Chromium", "chromium", "chromium-browser", "google-chrome")
}
