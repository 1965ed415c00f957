package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"zamok/api/view"
	"zamok/api/visible"
	"zamok/client"
)

// reservationFile is a reservation in a file. It is a secret: a program that has it can release the
// lock.
type reservationFile struct {
	*client.Reservation
	path      string
	endpoints []string
	exists    bool
}

// reservationFileVersion is the version of the file's format.
const reservationFileVersion = 1

// storedReservation is what the file contains.
type storedReservation struct {
	Version   int      `json:"version"`
	Endpoints []string `json:"endpoints"`
	client.Reservation
}

// reservationFileName is the default name of the file for a lock.
func reservationFileName(lock string) string {
	plain := strings.Map(func(r rune) rune {
		if r == '.' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) {
			return r
		}
		return '-'
	}, truncateUTF8(lock, 200)) // a file's name has at most 255 bytes
	plain = strings.TrimLeft(plain, "-.") // it is neither a flag nor hidden
	if plain == "" {
		plain = "lock"
	}
	return plain + ".zamok"
}

// readReservation reads a file that `zamok acquire` wrote; an error of the kind fs.ErrNotExist:
// there is none.
func readReservation(path string) (*reservationFile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s storedReservation
	if err := json.Unmarshal(text, &s); err != nil || s.Version == 0 {
		return nil, fmt.Errorf("%s is not a complete file of a reservation; nothing was done", path)
	}
	if s.Version != reservationFileVersion {
		return nil, fmt.Errorf("%s has format %d, but this program reads format %d only; nothing "+
			"was done", path, s.Version, reservationFileVersion)
	}
	if s.TTL <= 0 || len(s.Items) == 0 {
		return nil, fmt.Errorf("%s is damaged; nothing was done", path)
	}
	return &reservationFile{&s.Reservation, path, s.Endpoints, true}, nil
}

// save writes the file. It creates the file the first time, and overwrites only a file that it has
// read.
func (f *reservationFile) save() error {
	text, err := json.MarshalIndent(
		storedReservation{reservationFileVersion, f.endpoints, *f.Reservation}, "", "  ")
	if err != nil {
		return err
	}
	if !f.exists {
		file, err := os.OpenFile(f.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		f.exists = true
		if err := writeSynced(file, text); err != nil {
			return err
		}
		if dir, err := os.Open(filepath.Dir(f.path)); err == nil { // not every system can do this
			_ = errors.Join(dir.Sync(), dir.Close())
		}
		return nil
	}
	// of mode 0600
	file, err := os.CreateTemp(filepath.Dir(f.path), filepath.Base(f.path)+".part-*")
	if err != nil {
		return err
	}
	if err := writeSynced(file, text); err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return os.Rename(file.Name(), f.path)
}

func writeSynced(file *os.File, text []byte) error {
	_, err := file.Write(append(text, '\n'))
	return errors.Join(err, file.Sync(), file.Close())
}

// remove removes the file, if it exists.
func (f *reservationFile) remove() error {
	if !f.exists {
		return nil
	}
	err := os.Remove(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// reservedText lists the locks of a reservation.
func (f *reservationFile) reservedText() string {
	return strings.Join(mapSlice(f.Items,
		func(i client.Item) string { return visible.Word(i.Name()) }), ", ")
}

// lostError reports that a reservation ended before its release.
func (f *reservationFile) lostError(err error, next string) error {
	return &exitError{exitLost,
		fmt.Errorf("the reservation in %s has ended: %w; others may hold %s since; %s", f.path, err,
			f.reservedText(), next)}
}

type reservationDoc struct {
	Items   []view.Item   `json:"items"`
	Token   uint64        `json:"token,string"`
	Session uint64        `json:"session,string"`
	Ticket  uint64        `json:"ticket,string"`
	TTL     view.Duration `json:"ttl"`
	Until   string        `json:"until"` // an estimate, of this machine's clock
	Path    string        `json:"file"`
}

// print prints a reservation that holds its locks.
func (f *reservationFile) print(a *app, until time.Time) error {
	doc := reservationDoc{mapSlice(f.Items, newItem), uint64(f.Token), f.Session, f.Ticket,
		view.Duration(f.TTL), until.Format(time.RFC3339), f.path}
	return a.print(doc, func(w io.Writer) {
		fmt.Fprintf(w, "%s: reserved for %s\n", f.reservedText(), spanText(f.TTL))
		table(w, [][]string{
			{"until", "about " + clockText(until, time.Now()) + " by this machine's clock"},
			{"token", fmt.Sprint(uint64(f.Token))},
			{"file", f.path + " (private: it can release the reservation)"},
			{"renew", "zamok renew " + shellWord(f.path)},
			{"release", "zamok release --mine " + shellWord(f.path)},
		})
	})
}

// clockText is a time of day: of today with seconds, of another day with the date.
func clockText(t, now time.Time) string {
	if t, now := t.Local(), now.Local(); t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		return t.Format("Mon Jan 2 15:04")
	}
	return t.Local().Format("15:04:05")
}

// spanText is a duration without its zeros: 2h, 1h30m.
func spanText(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = strings.TrimSuffix(text, zero[1:])
		}
	}
	return text
}

// useStoredEndpoints selects the file's endpoints, unless others were given.
func (c *connectionFlags) useStoredEndpoints(cmd *cobra.Command, f *reservationFile) {
	if !cmd.Flags().Changed("endpoints") && c.app.getenv("ZAMOK_ENDPOINTS") == "" &&
		len(f.endpoints) > 0 {
		c.endpoints = f.endpoints
	}
}

// openReservation is readReservation for subcommands that need the file.
func openReservation(path string) (*reservationFile, error) {
	f, err := readReservation(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &exitError{exitTargetNotFound,
			fmt.Errorf("there is no file %s; nothing was done: the file of a reservation is "+
				"removed when that is released", path)}
	}
	return f, err
}
