# What there is to do with this tree. `make help` says it in short.

BIN     ?= bin
PREFIX  ?= /usr
CNIDIR  ?= /opt/cni/bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GO      ?= go

# An ordinary user's PATH often lacks the directories where ip, nft and conntrack live.
export PATH := $(PATH):/usr/sbin:/sbin
export CGO_ENABLED := 0

.PHONY: help build install test test-vm demo bench bench-vm lint generate clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

# The entries are hard links to one file: a symbolic link would dangle in a plugin directory that got a
# copy of a single entry. An entry is replaced by a new file, never written into: it may be running.
# The linker writes through a mapping, which leaves the file in small pages in memory; one that was copied
# starts a tenth faster. What is built for another machine cannot be asked for its names: the same source can.
build: ## bin/fairlead, and bin/cni/ with one entry per plugin, ready to be copied to /opt/cni/bin
	@rm -rf $(BIN)/cni $(BIN)/tmp && mkdir -p $(BIN)/cni $(BIN)/tmp
	$(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN)/tmp/ ./cmd/...
	@cp $(BIN)/tmp/fairlead $(BIN)/tmp/copy && mv -f $(BIN)/tmp/copy $(BIN)/fairlead && cp $(BIN)/tmp/cni $(BIN)/tmp/copy
	@names=$$(if [ "$$($(GO) env GOARCH)" = "$$($(GO) env GOHOSTARCH)" ]; then $(BIN)/fairlead plugins; \
	  else env -u GOARCH -u GOARM $(GO) run ./cmd/fairlead plugins; fi) && test -n "$$names" && \
	  for name in $$names; do ln $(BIN)/tmp/copy $(BIN)/cni/$$name || exit; done && \
	  rm -r $(BIN)/tmp && echo "$(BIN)/cni:" $$names

# Plugins are new files, never written into. What others have in the directory stays.
install: ## what was built: fairlead into PREFIX (/usr), the plugins into CNIDIR (/opt/cni/bin), units, manual pages and documents; below DESTDIR
	@test -x $(BIN)/fairlead && test -d $(BIN)/cni || { echo 'make build comes first'; exit 1; }
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(CNIDIR)
	install -m 755 $(BIN)/fairlead $(DESTDIR)$(PREFIX)/bin/
	cp --remove-destination -a $(BIN)/cni/. $(DESTDIR)$(CNIDIR)/
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man5 $(DESTDIR)$(PREFIX)/share/man/man7
	@for m in docs/man/*.[157]; do install -m 644 $$m $(DESTDIR)$(PREFIX)/share/man/man$${m##*.}/ || exit; done
	install -d $(DESTDIR)$(PREFIX)/share/doc/fairlead/plugins $(DESTDIR)$(PREFIX)/share/doc/fairlead/examples
	install -m 644 CHANGELOG.md LICENSE docs/*.md docs/*.svg $(DESTDIR)$(PREFIX)/share/doc/fairlead/
	install -m 644 docs/plugins/*.md $(DESTDIR)$(PREFIX)/share/doc/fairlead/plugins/
	install -m 644 docs/examples/*.conflist $(DESTDIR)$(PREFIX)/share/doc/fairlead/examples/
	@for u in packaging/systemd/*.*; do \
	  sed 's#=\(-\?\)/usr/bin/fairlead#=\1$(PREFIX)/bin/fairlead#; s#\([= ]\)/opt/cni/bin/#\1$(CNIDIR)/#' $$u > $(DESTDIR)$(PREFIX)/lib/systemd/system/$${u##*/} || exit; \
	  chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/$${u##*/}; done
	@test -n "$(DESTDIR)" || $(PREFIX)/bin/fairlead warm $(CNIDIR)/loopback # for a start faster by a sixth

test: ## all tests, in throw-away hosts of their own; as root or as an ordinary user
	@.ci/packages
	$(GO) test -timeout 20m $(TESTFLAGS) ./...

# make test-vm VMFLAGS='-v -run TestVLAN'; all takes most of an hour. With SKIPPED=FILE, what skipped for want of something in
# `make test TESTFLAGS=-count=1` with FAIRLEAD_SKIPPED=FILE in its environment.
test-vm: ## the tests that touch the kernel, again in a virtual machine whose kernel has every kind
	@.ci/packages vm || test -z "$$CI" # where there can be none, the next line says so
	@mkdir -p $(BIN) && $(GO) build -o $(BIN)/vm ./internal/vm
	$(BIN)/vm $(VMFLAGS) $(if $(SKIPPED),-from $(SKIPPED) test,test ./kernel ./packetfilter ./resource ./plugin/... ./dhcp/v4 ./dhcp/v6 ./dhcp/daemon)

demo: build ## three containers, the host and a published port talk to each other, in a throw-away host
	$(BIN)/fairlead demo

# Real-time scheduling, where it is allowed, keeps other load out of the figures of both sides.
bench: build ## side by side with the reference plugins; writes docs/performance.md
	@.ci/packages bench
	$(GO) build -trimpath -o $(BIN)/bench ./bench
	$$(chrt -r 10 true 2>/dev/null && echo chrt -r 10) $(BIN)/bench -plugins $(BIN)/cni -md docs/performance.md

bench-vm: build ## the same in the virtual machine, of what few kernels have
	@.ci/packages bench && .ci/packages vm
	$(GO) build -trimpath -o $(BIN)/bench ./bench && $(GO) build -o $(BIN)/vm ./internal/vm
	$(BIN)/vm $(BIN)/bench -plugins $(BIN)/cni -virtual -json > $(BIN)/bench.json || { cat $(BIN)/bench.json; exit 1; }
	$(BIN)/bench -from $(BIN)/bench.json -md docs/performance.md

lint: ## gofmt, go vet, staticcheck and the architecture
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -d $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) test ./internal/arch

generate: ## docs/clauses.md, docs/plugins/, docs/schema/, docs/man/ and docs/examples/ anew, from the code
	$(GO) test ./internal/docgen -count=1 -update

clean: ## remove what was built
	rm -rf $(BIN)
