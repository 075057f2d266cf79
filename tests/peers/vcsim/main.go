// Command vcsim is govmomi's vCenter simulator behind the few flags our tests and benches need.
//
// It announces itself with a JSON file (-E) or line once it listens, and ends when its standard input closes, so it
// cannot outlive the test run that started it.
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/vmware/govmomi/simulator"

	// Endpoints beside the vim25 SDK: tagging over REST (the other endpoints of vcsim play no part here).
	_ "github.com/vmware/govmomi/vapi/simulator"
)

// announcement has the keys of `gpuops sim serve --ready-file`, so one reader serves both simulators.
type announcement struct {
	URL      string `json:"url"`
	Username string `json:"username"`
	Password string `json:"password"`
	Pid      int    `json:"pid"`
}

func main() {
	model := simulator.VPX()
	flag.IntVar(&model.Cluster, "cluster", model.Cluster, "number of clusters")
	flag.IntVar(&model.ClusterHost, "host", model.ClusterHost, "number of hosts per cluster")
	flag.IntVar(&model.Host, "standalone-host", model.Host, "number of standalone hosts")
	flag.IntVar(&model.Machine, "vm", model.Machine, "number of virtual machines per resource pool")
	flag.IntVar(&model.Datastore, "ds", model.Datastore, "number of datastores")
	flag.IntVar(&model.Portgroup, "pg", model.Portgroup, "number of port groups")
	listen := flag.String("l", "127.0.0.1:0", "address to listen on")
	load := flag.String("load", "", "inventory directory written by `govc object.save`, in place of the counts")
	username := flag.String("username", "", "accept this user only (default: any)")
	password := flag.String("password", "", "accept this password only (default: any)")
	certificate := flag.String("tlscert", "", "certificate chain, PEM")
	key := flag.String("tlskey", "", "key of the certificate, PEM")
	ready := flag.String("E", "", "file to announce the server in (default: standard output)")
	methodDelay := flag.String("method-delay", "", "milliseconds per method: PowerOff:500,LockHandoff:0")
	flag.Parse()

	simulator.TaskDelay.MethodDelay = delays(*methodDelay)
	if *load == "" {
		check(model.Create())
	} else {
		check(model.Load(*load))
	}
	defer model.Remove()

	model.Service.RegisterEndpoints = true
	model.Service.Listen = &url.URL{Host: *listen}
	if *username != "" {
		model.Service.Listen.User = url.UserPassword(*username, *password)
	}
	model.Service.TLS = new(tls.Config)
	if *certificate != "" {
		pair, err := tls.LoadX509KeyPair(*certificate, *key)
		check(err)
		model.Service.TLS.Certificates = []tls.Certificate{pair}
	}

	server := model.Service.NewServer()
	check(announce(server.URL, *ready))
	waitForTheEnd()
}

func delays(flagValue string) map[string]int {
	byMethod := make(map[string]int)
	for _, pair := range strings.FieldsFunc(flagValue, func(r rune) bool { return r == ',' }) {
		method, milliseconds, _ := strings.Cut(pair, ":")
		delay, err := strconv.Atoi(milliseconds)
		check(err)
		byMethod[method] = delay
	}
	return byMethod
}

func announce(at *url.URL, path string) error {
	password, _ := at.User.Password()
	plain := *at
	plain.User = nil
	text, err := json.Marshal(announcement{plain.String(), at.User.Username(), password, os.Getpid()})
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if path == "" {
		_, err = os.Stdout.Write(text)
		return err
	}
	// Written beside and renamed: a reader never sees half a file.
	if err := os.WriteFile(path+".part", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

func waitForTheEnd() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end <- syscall.SIGTERM
	}()
	<-end
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
