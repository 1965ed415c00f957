package main

import (
	"log/slog"
	"time"
)

const (
	expiryEvery = time.Hour // between two checks of all certificates
	day         = 24 * time.Hour
)

// expiryWarnings are the times before the expiry of a certificate at which a warning is logged. A
// certificate with a lifetime of less than three times as long is exempt: it is renewed later than
// that.
var expiryWarnings = []time.Duration{30 * day, 7 * day, day, 0}

// expiryLog warns of certificates that expire: at each of expiryWarnings, and every day during the
// last day and after the expiry.
type expiryLog struct {
	log    *slog.Logger
	files  []*reloaded[certificates]
	warned map[expiry]warned
}

type warned struct {
	level int // how many of expiryWarnings have passed
	at    time.Time
}

// check logs the warnings that are due. It reloads changed files, so that a renewed certificate
// counts even if nothing connects.
func (l *expiryLog) check(now time.Time) {
	for _, files := range l.files {
		for _, ends := range files.get().expiries {
			l.warn(ends, now)
		}
	}
}

func (l *expiryLog) warn(ends expiry, now time.Time) {
	level, left := 0, ends.at.Sub(now)
	for _, before := range expiryWarnings {
		if left <= before && 3*before <= ends.at.Sub(ends.since) {
			level++
		}
	}
	last := l.warned[ends]
	daily := left <= day && now.Sub(last.at) >= day
	if level == 0 || level == last.level && !daily {
		return
	}
	l.warned[ends] = warned{level, now}
	if left <= 0 {
		l.log.Error("a certificate has expired and connections that need it fail: renew it; the "+
			"file is reloaded when it changes",
			"file", ends.file, "expired", ends.at.UTC().Format(time.RFC3339))
		return
	}
	l.log.Warn("a certificate expires soon: renew it; the file is reloaded when it changes",
		"file", ends.file, "expires", ends.at.UTC().Format(time.RFC3339), "days_left",
		int(left/day))
}

// watch checks now and every hour, until it is stopped.
func (l *expiryLog) watch() (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	l.check(time.Now())
	go func() {
		defer close(done)
		tick := time.NewTicker(expiryEvery)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				l.check(now)
			case <-stopped:
				return
			}
		}
	}()
	return func() {
		close(stopped)
		<-done
	}
}
