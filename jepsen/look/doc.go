// Look checks recorded histories again and writes their report:
//
//	go run ./jepsen/look -o DIR history.jsonl…
//
// Several files are one run, as several processes recorded it. It exits with 1 if the run is violated or
// invalid, and with 2 if it could not be judged.
package main
