# What there is to do with this tree. `make help` says it in short.

BIN     ?= bin
PREFIX  ?= /usr
CNIDIR  ?= /opt/cni/bin
REFERENCE ?= /usr/lib/cni
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GO      ?= go

# The command, as this machine can run it: what is built for another one it cannot.
HERE = $$([ "$$($(GO) env GOARCH)" = "$$($(GO) env GOHOSTARCH)" ] && echo $(BIN)/fairlead || echo env -u GOARCH -u GOARM $(GO) run ./cmd/fairlead)
# Where the units look for plugins: packages install them from their own directory.
UNITCNIDIR = $(CNIDIR)

# An ordinary user's PATH often lacks the directories where ip, nft and conntrack live.
export PATH := $(PATH):/usr/sbin:/sbin
export CGO_ENABLED := 0

# Exhaustive tests have a part of their cases in a run, by its number: as many runs as there are parts have all. With an empty
# number they have all of them in one run.
ifeq ($(origin FAIRLEAD_RUN),undefined)
FAIRLEAD_RUN := $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
endif
export FAIRLEAD_RUN

.PHONY: help build agent install uninstall release signed-release test test-all test-dist test-race test-busy chaos test-vm test-skipped fuzz mutate histories plant test-kube test-kube-nodes test-fleet demo bench bench-newest bench-vm bench-commands bench-cluster docs lint generate clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

# The entries are hard links to one file: a symbolic link would dangle in a plugin directory that got a
# copy of a single entry. An entry is replaced by a new file, never written into: it may be running.
# The linker writes through a mapping, which leaves the file in small pages in memory; one that was copied
# starts a tenth faster.
build: ## bin/fairlead, bin/fairlead-conformance, and bin/cni/ with one entry per plugin, ready to be copied to /opt/cni/bin
	@rm -rf $(BIN)/cni $(BIN)/tmp && mkdir -p $(BIN)/cni $(BIN)/tmp
	$(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN)/tmp/ ./cmd/...
	@mv -f $(BIN)/tmp/fairlead-conformance $(BIN)/ && cp $(BIN)/tmp/fairlead $(BIN)/tmp/copy && mv -f $(BIN)/tmp/copy $(BIN)/fairlead && cp $(BIN)/tmp/cni $(BIN)/tmp/copy
	@names=$$($(HERE) plugins) && test -n "$$names" && \
	  for name in $$names; do ln $(BIN)/tmp/copy $(BIN)/cni/$$name || exit; done && \
	  rm -r $(BIN)/tmp && echo "$(BIN)/cni:" $$names

# It is not part of build: the libraries of Kubernetes and etcd take minutes.
agent: ## bin/fairlead-agent, for the nodes of a cluster, and bin/fairlead-store, an etcd for those that have none
	$(GO) -C cluster build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(abspath $(BIN))/ ./cmd/fairlead-agent
	$(GO) -C cluster/store build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(abspath $(BIN))/ ./cmd/fairlead-store

# The pages of docs/ lie beside README.md there; what leads to the source leads to where that is published.
DOC      = $(DESTDIR)$(PREFIX)/share/doc/fairlead
SOURCE  := https://github.com/fairlead-cni/fairlead/blob/main
TOP     := s,\]\((docs/man|[a-ce-z.][^:)]*)\),]($(SOURCE)/\1),g; s,\]\(docs/,](,g
PAGE    := s,\]\(man\),]($(SOURCE)/docs/man),; s,\]\(\.\./([a-z.]),]($(SOURCE)/\1,g; s,\]\(\.\./,](,g
BELOW   := s,\]\(\.\./\.\./([a-z.]),]($(SOURCE)/\1,g; s,\]\(\.\./\.\./,](../,g
install: ## what was built: fairlead (and fairlead-agent, fairlead-store, fairlead-conformance) into PREFIX (/usr), the plugins into CNIDIR (/opt/cni/bin), units, completions, manual pages, documents; below DESTDIR
	@test -x $(BIN)/fairlead && test -d $(BIN)/cni || { echo 'make build comes first'; exit 1; }
	install -D -m 755 $(BIN)/fairlead $(DESTDIR)$(PREFIX)/bin/fairlead
	@for p in fairlead-agent fairlead-store fairlead-conformance; do ! test -x $(BIN)/$$p || install -m 755 $(BIN)/$$p $(DESTDIR)$(PREFIX)/bin/$$p || exit; done
	$(HERE) install --from $(BIN)/cni --dir $(DESTDIR)$(CNIDIR)
	@set -e; share=$(DESTDIR)$(PREFIX)/share; units=$(DESTDIR)$(PREFIX)/lib/systemd/system; umask 022; \
	for n in 1 5 7; do mkdir -p $$share/man/man$$n; install -m 644 docs/man/*.$$n $$share/man/man$$n; done; \
	mkdir -p $(DOC)/examples $(DOC)/schema $$units $$share/bash-completion/completions $$share/zsh/site-functions \
	  $$share/fish/vendor_completions.d; \
	install -m 644 LICENSE NOTICE docs/*.svg $(DOC); \
	install -m 644 docs/examples/* $(DOC)/examples; install -m 644 docs/schema/* $(DOC)/schema; \
	for f in README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md; do sed -E '$(TOP)' $$f >$(DOC)/$$f; done; \
	for f in docs/*.md; do sed -E '$(PAGE)' $$f >$(DOC)/$${f##*/}; done; \
	for f in docs/*/*.md; do d=$${f%/*}; mkdir -p $(DOC)/$${d#docs/}; sed -E '$(BELOW)' $$f >$(DOC)/$${f#docs/}; done; \
	$(HERE) completion bash >$$share/bash-completion/completions/fairlead; \
	$(HERE) completion zsh >$$share/zsh/site-functions/_fairlead; \
	$(HERE) completion fish >$$share/fish/vendor_completions.d/fairlead.fish; \
	for u in packaging/systemd/*.*; do test -x $(BIN)/fairlead-agent || case $$u in *-agent.*|*-store.*) continue ;; esac; \
	  sed 's#=\(-\?\)/usr/bin/fairlead#=\1$(PREFIX)/bin/fairlead#; s#\([= ]\)/opt/cni/bin/#\1$(UNITCNIDIR)/#' \
	  $$u >$$units/$${u##*/}; done

uninstall: ## remove what make install put there, with the same variables
	$(HERE) install --uninstall --dir $(DESTDIR)$(CNIDIR)
	@rm -rf $(BIN)/installed && $(MAKE) -s install DESTDIR=$(abspath $(BIN))/installed >/dev/null
	@rm -rf $(BIN)/installed$(CNIDIR) && cd $(BIN)/installed && find . ! -type d | while read -r f; do rm -f "$(DESTDIR)/$$f"; done
	@rm -rf $(DOC) $(BIN)/installed

# The plugins of a package are in a directory of its own: those of the reference's packages are in /opt/cni/bin.
ARCHS   ?= amd64 arm64 riscv64 ppc64le s390x arm
OUT     ?= $(BIN)/dist
release: build agent ## archives, packages, an image, sums and an SBOM of VERSION for ARCHS, in OUT (bin/dist)
	@rm -rf $(OUT) $(BIN)/release && mkdir -p $(BIN)/release && $(GO) -C internal/release build -trimpath -o $(abspath $(BIN))/release/tool .
	@set -e; for arch in $(ARCHS); do echo "$$arch:"; tree=$(BIN)/release/$$arch; \
	  if [ $$arch = $$($(GO) env GOARCH) ]; then mkdir -p $$tree/bin && cp -a $(BIN)/fairlead $(BIN)/fairlead-agent $(BIN)/fairlead-store $(BIN)/fairlead-conformance $(BIN)/cni $$tree/bin; \
	  else GOARCH=$$arch GOARM=7 $(MAKE) -s build agent BIN=$$tree/bin HERE=$(BIN)/fairlead; fi; \
	  for p in /usr /usr/local; do top=system; [ $$p = /usr ] || top=local; \
	    $(MAKE) -s install BIN=$$tree/bin HERE=$(BIN)/fairlead PREFIX=$$p CNIDIR=$$p/lib/fairlead/cni UNITCNIDIR=/opt/cni/bin DESTDIR=$$tree/$$top >/dev/null; \
	  done; done
	@mkdir -p $(OUT) && set -e; for f in 'cluster:cluster' 'cluster-wireguard:cluster cluster/wireguard' 'cluster-remove:cluster uninstall cluster/remove'; do \
	  $(GO) -C internal/kube run ./render -manifests $(CURDIR)/packaging/kubernetes -tag $(VERSION:v%=%) $${f#*:} >$(OUT)/fairlead-$${f%%:*}.yaml; \
	done
	$(BIN)/release/tool -version $(VERSION) -date $${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 0)} -trees $(BIN)/release -out $(OUT) $(ARCHS)
	@cat $(OUT)/SHA256SUMS

signed-release: ## the same from a fresh clone of the tag VERSION, signed with the minisign key in the file KEY
	@sh packaging/release.sh '$(VERSION)' '$(KEY)' '$(OUT)'

# Tests wait for the kernel half of their time, so the scripts run beside the rest, and more packages than there are processors.
# The longest package begins first. `make lint` vets.
DIST := ./internal/dist
test: ## the tests, in throw-away hosts of their own, with a part of the cases of exhaustive ones; as root or as an ordinary user
	@.ci/packages
	@mkdir -p $(BIN)
	$(GO) -C internal/tools test -vet=off -timeout 60m $(TESTFLAGS) ./... >$(BIN)/tools.out 2>&1 & tools=$$!; trap "kill $$tools" INT TERM; \
	$(GO) test -vet=off -p $$((2 * $$(nproc))) -timeout 60m $(TESTFLAGS) ./plugin $$($(GO) list ./... | grep -v $(DIST:.%=%)$$); main=$$?; \
	wait $$tools; tools=$$?; cat $(BIN)/tools.out; exit $$((main + tools))

test-dist: ## what a release has: packages, units, images, installs and the commands of the pages
	@.ci/packages
	$(GO) test -vet=off -timeout 60m $(TESTFLAGS) $(DIST)

test-all: ## all of it, and all cases of exhaustive tests
	$(MAKE) test FAIRLEAD_RUN=
	$(MAKE) test-dist

# The race detector needs cgo, so a C compiler. With PART=17 it has every third package, so that three successive numbers have all.
RACE ?= ./attach ./internal/command/install ./internal/repair ./internal/dhcp/... ./internal/command/nameserver ./internal/calls
test-race: ## the packages whose goroutines share something, with the race detector
	@.ci/packages race
	CGO_ENABLED=1 $(GO) test -race -vet=off -count=1 -timeout 60m $(if $(PART),$$(printf '%s\n' $(RACE) | awk -v n=$(PART) 'NR % 3 == n % 3'),$(RACE))

# Tests wait for events, so no load of the machine makes them fail.
BUSY   ?= ./attach ./internal/calls ./internal/dhcp/... ./invoke ./ipam ./internal/ipam/... ./kernel/... ./internal/kernel/... \
  ./internal/command/nameserver ./internal/ovsdb ./plugin ./internal/repair ./resource/...
ROUNDS ?= 3
test-busy: ## three rounds of the tests that wait, beside eight busy processes; each has other cases of exhaustive tests
	@.ci/packages
	@for i in 1 2 3 4 5 6 7 8; do timeout 8h sh -c 'while :; do :; done' & busy="$$busy $$!"; done; trap "kill $$busy" EXIT; trap "exit 1" INT TERM; \
	for round in $$(seq $(ROUNDS)); do echo "round $$round"; FAIRLEAD_RUN=$$((FAIRLEAD_RUN + round)) $(GO) test -vet=off -count=1 -timeout 2h $(TESTFLAGS) $(BUSY) || exit; done

# make chaos CHAOSTIME=30m CONTAINERS=1000
CHAOSTIME  ?= 3m
CONTAINERS ?= 300
chaos: ## for CHAOSTIME (3m), calls for CONTAINERS beside kills, stops, flushes, reloads of firewalld, and full disks
	@.ci/packages
	$(GO) -C internal/tools test ./chaos -vet=off -count=1 -v -timeout 2h -time $(CHAOSTIME) -containers $(CONTAINERS) -seed $(SEED)

# make test-vm VMFLAGS='-v -run TestVLAN'; all takes most of an hour. With SKIPPED=FILE, what skipped for want of something in
# `make test TESTFLAGS=-count=1` with FAIRLEAD_SKIPPED=FILE in its environment; with PART=17/24, one of 24 parts of it. With
# ARCH=arm64 or s390x, what internal/vm/elsewhere.txt names, in a machine of that architecture; an empty SKIPPED runs all there.
$(if $(ARCH),$(eval SKIPPED ?= internal/vm/elsewhere.txt))
VMPACKAGES ?= ./kernel ./internal/kernel/... ./internal/command/packetfilter ./internal/command/trace ./resource/... ./plugin/... \
  ./internal/dhcp/v4 ./internal/dhcp/v6 ./internal/dhcp/daemon
test-vm: ## the tests that touch the kernel, again in a virtual machine whose kernel has every kind
	@.ci/packages vm $(ARCH) || test -z "$$CI" # where there can be none, the next line says so
	@mkdir -p $(BIN) && $(GO) build -o $(BIN)/vm ./internal/vm
	$(BIN)/vm $(if $(ARCH),-arch $(ARCH)) $(VMFLAGS) $(if $(SKIPPED),-from $(SKIPPED) $(if $(PART),-part $(PART)) test,test $(VMPACKAGES))

# make fuzz FUZZTIME=2m takes an hour on two processors, and FUZZTIME=10m a night. What fails is kept in testdata/fuzz.
FUZZTIME ?= 20s
fuzz: ## each fuzz target for FUZZTIME (20s), as many side by side as there are processors
	@.ci/packages
	.ci/fuzz $(FUZZTIME)

# A package, or PACKAGE=TESTS where other packages' tests have to notice.
MUTANTS ?= 100
SEED    ?= 1
MUTATED ?= spec=spec,internal/command/cli/validate sdk=sdk,plugin/bridge,internal/repair plan=plan,internal/engine resource/filter=resource/filter,internal/repair ipam internal/ipam/disk internal/ipam/grant attach internal/repair internal/command/install cluster/agent internal/engine
mutate: export FAIRLEAD_RUN :=
mutate: ## MUTANTS (100) small changes of the packages MUTATED, of which SEED decides: which do their tests not notice?
	@.ci/packages
	CGO_ENABLED=0 $(GO) build -buildvcs=false -ldflags='-s -w' -o bin/unmutated ./cmd/fairlead # for tests, which cannot write to Go's cache
	FAIRLEAD_PROGRAM=$(CURDIR)/bin/unmutated $(GO) -C internal/tools run ./mutate -root ../.. -accepted mutate/accepted.txt -n $(MUTANTS) -seed $(SEED) $(MUTATED)

# make histories HISTORYTIME=8h is a night. Histories that fail are kept, and TestFailedOnce plays them from then on.
HISTORIES   ?= 0
HISTORYTIME ?= 10m
HISTORY      = $(GO) -C internal/tools run ./histories -root ../.. -seed $(SEED)
histories: ## for HISTORYTIME (10m), orders of calls, faults and reboots that no run has had, of which SEED decides
	@.ci/packages
	$(HISTORY) -n $(HISTORIES) -time $(HISTORYTIME) -out histories/testdata

plant: ## whether histories find each fault of internal/tools/histories/faults.go, within two minutes each
	@.ci/packages
	$(HISTORY) -planted -time 2m

# What the tests of clusters run. Go's cache keeps the programs of Kubernetes: the API server takes ten minutes of a processor, all
# together half an hour and more. CoreDNS cannot share the module's libraries.
KUBESTAMP := $(foreach v,gitVersion=v1.35.4 gitMajor=1 gitMinor=35,-X k8s.io/component-base/version.$(v))
KUBEGO     = $(GO) -C cluster/kube $(1) -trimpath -ldflags '-s -w $(KUBESTAMP)' -o $(abspath $(BIN))/kube/
KUBENODES := cmd/kube-controller-manager cmd/kube-scheduler cmd/kubelet cmd/kube-proxy cmd/kubectl test/images/agnhost
KUBETESTS ?= TestMachines TestMachinesIPv6 TestMachinesDualStack TestConformance TestConformanceIPv6 TestConformanceDualStack
KUBETEST   = $(GO) -C cluster test -tags kube -count=1 $(TESTFLAGS)

.PHONY: kube-agent
kube-agent:
	@.ci/packages kube
	$(call KUBEGO,build) k8s.io/kubernetes/cmd/kube-apiserver
	$(GO) -C cluster build -trimpath -ldflags '-X main.version=$(VERSION)' -o $(abspath $(BIN))/kube/ ./cmd/fairlead-agent
	@$(MAKE) --no-print-directory build BIN=$(BIN)/kube

test-kube: kube-agent ## a real API server: fairlead-agent on two nodes, in network namespaces, and what it may change
	$(KUBETEST) -timeout 60m -run 'TestPodsOfTwoNodes|TestTunnelPolicy' ./kubetest

test-kube-nodes: kube-agent ## KUBETESTS: clusters of three nodes with kubelet, kube-proxy and containerd, and Kubernetes' end-to-end tests
	$(call KUBEGO,build) $(addprefix k8s.io/kubernetes/,$(KUBENODES))
	$(call KUBEGO,test -c)e2e.test k8s.io/kubernetes/test/e2e
	@install -m 644 $$($(GO) -C cluster/kube list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images/agnhost/porter/localhost.* $(BIN)/kube
	GOBIN=$(abspath $(BIN))/kube $(GO) install -trimpath -ldflags '-s -w' github.com/coredns/coredns@v1.14.3
	set -e; for test in $(KUBETESTS); do $(KUBETEST) -timeout 5h -run "^$$test$$" ./kubetest; done

# Each of the two etcds has half of the time.
FLEETTIME ?= 2h
test-fleet: ## for FLEETTIME (2h), faults of three members of etcd and three nodes of a fleet, until a container has another's address
	FAIRLEAD_FLEET=$(FLEETTIME) $(GO) -C cluster test -count=1 -v -timeout 48h -run '^TestMembers$$' $(TESTFLAGS) ./faults

bench-cluster: ## an agent beside 1,000 nodes, an ADD, TCP between nodes and a fleet's etcd: figures on the terminal
	for bench in ThousandNodes Throughput Add FleetAdd Store; do \
	$(GO) -C cluster test -run '^$$' -bench "^Benchmark$$bench$$" -benchtime 1x -timeout 60m ./faults || exit; done
	$(GO) -C cluster test -run '^$$' -bench . -benchtime 1x -timeout 60m ./etcd

$(BIN)/skipped:
	@mkdir -p $(BIN) && : >$@.new && FAIRLEAD_SKIPPED=$(abspath $@.new) $(MAKE) test TESTFLAGS=-count=1 && mv $@.new $@
test-skipped: $(BIN)/skipped ## all tests that skip on this kernel, as bin/skipped lists them, in the virtual machine
	$(MAKE) test-vm SKIPPED=$<

demo: build ## three containers, the host and a published port talk to each other, in a throw-away host
	$(BIN)/fairlead demo

# Real-time scheduling, where it is allowed, keeps other load out of the figures of all sides. BENCHFLAGS='-rows path' measures
# that alone, and shows it on the terminal; the page is written by a run of all rows.
bench: build ## side by side with the reference plugins in REFERENCE (/usr/lib/cni); writes docs/performance.md
	@.ci/packages bench
	$(GO) build -trimpath -o $(BIN)/bench ./internal/bench
	$(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/tmp/ ./internal/bench/floor
	@mkdir -p $(BIN)/floor && cp --remove-destination $(BIN)/tmp/floor $(BIN)/floor/floor && rm -r $(BIN)/tmp
	$$(chrt -r 10 true 2>/dev/null && echo chrt -r 10) $(BIN)/bench -plugins $(BIN)/cni -floor $(BIN)/floor \
	  -reference $(REFERENCE) $(if $(BENCHFLAGS),$(BENCHFLAGS),-md docs/performance.md)

bench-commands: build ## seconds of a processor of doctor, check, ls, inspect and others beside 1,000 attachments, on the terminal
	$(GO) build -trimpath -o $(BIN)/bench ./internal/bench
	$(BIN)/bench -plugins $(BIN)/cni -rows commands $(BENCHFLAGS)

# Go's proxy has the reference as a module, and its programs say which version they are.
NEWEST ?= v1.9.1
UPSTREAM := github.com/containernetworking/plugins
$(BIN)/reference/$(NEWEST):
	@mkdir -p $@.new && cd /tmp && source=$$($(GO) mod download -json $(UPSTREAM)@$(NEWEST) | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && \
	  $(GO) -C "$$source" build -mod=mod -trimpath -ldflags '-s -w -X $(UPSTREAM)/pkg/utils/buildversion.BuildVersion=$(NEWEST)' \
	  -o $(abspath $@.new)/ ./plugins/...
	@mv $@.new $@
NEWESTROWS = -rows start,verbs,gc,path -md docs/performance.md
bench-newest: $(BIN)/reference/$(NEWEST) ## the same beside the newest reference plugins, NEWEST, with both backends; a section of that page
	$(MAKE) bench REFERENCE=$(abspath $<) BENCHFLAGS='-newest $(or $(BENCHFLAGS),$(NEWESTROWS))'

bench-vm: build ## the same in the virtual machine, of what few kernels have
	@.ci/packages bench && .ci/packages vm
	$(GO) build -trimpath -o $(BIN)/bench ./internal/bench && $(GO) build -o $(BIN)/vm ./internal/vm
	$(BIN)/vm $(BIN)/bench -plugins $(BIN)/cni -virtual -json > $(BIN)/bench.json || { cat $(BIN)/bench.json; exit 1; }
	$(BIN)/bench -from $(BIN)/bench.json -md docs/performance.md

# Opens from the disk, without a server: bin/site/index.html.
docs: ## the documentation as a web site, in bin/site; a link that leads nowhere is an error
	$(GO) -C internal/site run . -root ../.. -source $(SOURCE) -out $(abspath $(BIN))/site

lint: ## gofmt, go vet, staticcheck and the architecture
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -d $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./... && $(GO) -C internal/tools vet ./...
	$$($(GO) -C internal/tools tool -n staticcheck) ./...
	$(GO) test ./internal/arch

generate: ## NOTICE, docs/clauses.md, docs/graph.svg, docs/plugins/, docs/schema/, docs/man/, docs/examples/ and internal/command/cli/explain/reference.json anew, from the code
	$(GO) test ./internal/docgen -count=1 -update
	$(GO) test ./graph -count=1 -run Golden -update

clean: ## remove what was built
	rm -rf $(BIN)
