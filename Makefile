CARGO    ?= cargo
# Not --all-features: tls-native-tls needs OpenSSL's headers, which a bare machine does not have.
FEATURES := leasehold/cli,leasehold/metrics,leasehold/serde
# How long `make torture` lasts.
MINUTES  ?= 10
# How long `make fuzz` spends on each target.
SECONDS  ?= 60

# The tests drive the real sqlx-cli.
export LEASEHOLD_SQLX_CLI := $(CURDIR)/target/tools/bin/sqlx

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo turns dashboard recipes nightly service deploy invoice languages test model moves matrix soak handoff bench failover torture mutants fuzz broken fmt lint docs docs-rs package deny setup clean

help: ## This list.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## A paused worker's stale write, refused by PostgreSQL. Uses DATABASE_URL when set.
	@[ -n "$$DATABASE_URL" ] || scripts/setup postgres
	$(CARGO) run --quiet --example demo

turns: ## Three processes take turns; draws docs/turns.svg. Uses DATABASE_URL when set.
	@[ -n "$$DATABASE_URL" ] || scripts/setup postgres
	$(CARGO) run --quiet --example turns -- docs/turns.svg

dashboard: ## A small application in numbers; draws docs/dashboard.svg. Uses DATABASE_URL when set.
	@[ -n "$$DATABASE_URL" ] || scripts/setup postgres
	$(CARGO) run --quiet --example dashboard --features metrics -- docs/dashboard.svg

recipes: ## Fencing wherever the resource is, a stale writer in each. Uses DATABASE_URL when set.
	@[ -n "$$DATABASE_URL" ] || scripts/setup postgres
	$(CARGO) run --quiet --example recipes

nightly: ## A scheduled job: on three replicas, once a night. Uses DATABASE_URL when set.
	@[ -n "$$DATABASE_URL" ] || scripts/setup postgres
	$(CARGO) run --quiet --example nightly

service: ## One leader among three replicas of a service; it is told to end, the next one killed. Uses DATABASE_URL when set.
	@[ -n "$$DATABASE_URL" ] || scripts/setup postgres
	$(CARGO) run --quiet --example service -- --prove

deploy: ## Eight replicas start at once, one migrates; it is killed, the next one goes on. Uses DATABASE_URL when set.
	@[ -n "$$DATABASE_URL" ] || scripts/setup postgres
	$(CARGO) run --quiet --example deploy

invoice: ## A queue of invoices, each made final once, though a worker oversleeps. Uses DATABASE_URL when set.
	@[ -n "$$DATABASE_URL" ] || scripts/setup postgres
	$(CARGO) run --quiet --example invoice

languages: ## The invoices in Python and Node; a language whose driver cannot be had is left out. Uses DATABASE_URL when set.
	@[ -n "$$DATABASE_URL" ] || scripts/setup postgres
	@scripts/languages
	$(CARGO) run --quiet --example languages

# The integration tests come last, so that their closing line does. Everything is built for the whole
# workspace: fewer packages at a time would mean other features of their dependencies, built anew.
test: setup lint docs deny package ## Every check: format, lints, docs, licences, package, examples, tests, two minutes of torture.
	$(CARGO) build --workspace --examples --bin leasehold-torture --features $(FEATURES)
	env -u DATABASE_URL $(CARGO) run --quiet --example demo --features $(FEATURES)
	env -u DATABASE_URL $(CARGO) run --quiet --example turns --features $(FEATURES) -- target/turns.svg
	env -u DATABASE_URL $(CARGO) run --quiet --example recipes --features $(FEATURES)
	env -u DATABASE_URL $(CARGO) run --quiet --example nightly --features $(FEATURES)
	env -u DATABASE_URL $(CARGO) run --quiet --example service --features $(FEATURES) -- --prove
	env -u DATABASE_URL $(CARGO) run --quiet --example deploy --features $(FEATURES)
	env -u DATABASE_URL $(CARGO) run --quiet --example invoice --features $(FEATURES)
	scripts/languages
	env -u DATABASE_URL $(CARGO) run --quiet --example languages --features $(FEATURES)
	env -u DATABASE_URL $(CARGO) run --quiet --example dashboard --features $(FEATURES) -- target/dashboard.svg 12
	$(CARGO) test --workspace --features $(FEATURES) --doc
	$(CARGO) test --workspace --features $(FEATURES) --lib --bins --examples
	$(CARGO) test --workspace --features $(FEATURES) --test texts
	$(CARGO) test --workspace --features $(FEATURES) --test moves
	$${CARGO_TARGET_DIR:-target}/debug/leasehold-torture 2
	$(CARGO) test --workspace --features $(FEATURES) --test it

model: ## Goes through every state of the protocol, and finds what breaks in each variant. STEPS=1 shows how.
	$(CARGO) run --quiet --release --package leasehold-model -- $(if $(STEPS),--steps)

moves: ## Promotes, restores, copies, upgrades and crashes real clusters; a line of JSON for each.
	@scripts/setup postgres
	$(CARGO) test --features $(FEATURES) --test moves

matrix: setup ## The integration tests on PostgreSQL 14 to 18 and through PgBouncer; fetches what is missing.
	scripts/matrix

soak: setup ## The long tests, a million cycles and more, with their figures.
	$(CARGO) test --release --features $(FEATURES) --test it -- --ignored --nocapture --test-threads=1

handoff: ## More than 100,000 hand-offs, judged and counted; the last line is JSON.
	@scripts/setup postgres
	$(CARGO) bench --quiet --bench handoff

bench: ## Beside its peers and the physical limit; QUICK=1 for a first look, ONLY=AB for some of the work.
	@scripts/setup postgres peers
	$(CARGO) run --quiet --release --package leasehold-comparison -- target/comparison

failover: ## Patroni and etcd, two nodes: every way to lose the leader, under load; a line of JSON for each.
	@scripts/setup postgres
	@if scripts/setup patroni; then \
		$(CARGO) run --quiet --features $(FEATURES) --example failover -- target/tools/patroni "$(CASE)"; \
	else echo 'Patroni or etcd cannot be had here, see above: the failover was NOT tried'; fi

torture: ## Faults for MINUTES=10 on processes and server, the whole history judged; SEED=n asks for it again.
	@scripts/setup postgres faketime
	$(CARGO) run --quiet --release --package leasehold-torture -- $(MINUTES) $(SEED)

broken: ## The integration tests on broken SQL, each variant at a time: a named test must fail. ONLY=word for some.
	@scripts/setup postgres
	$(CARGO) test --workspace --features $(FEATURES) --test mutants -- $(ONLY)

mutants: ## Broken variants of the SQL, a short torture run on each: the checker must catch all.
	@scripts/setup postgres
	$(CARGO) run --quiet --release --package leasehold-torture -- --mutants $(SEED)

fuzz: ## Fuzzes whatever parses or decodes, SECONDS=60 for each target. Skipped without a C++ compiler.
	@SECONDS_EACH=$(SECONDS) scripts/fuzz $(TARGETS)

fmt: ## Formats the Rust code.
	$(CARGO) fmt --all

lint: ## Format check, and clippy with warnings as errors.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --features $(FEATURES) -- -D warnings
	$(CARGO) clippy --lib --features tls-rustls-ring-webpki -- -D warnings

docs: ## The API documentation, warnings as errors.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --features $(FEATURES)

# What docs.rs does with a nightly toolchain; a stable one takes the flags when told that it may.
docs-rs: ## The documentation as docs.rs builds it, with a mark on what needs a feature.
	RUSTC_BOOTSTRAP=1 RUSTDOCFLAGS="--cfg docsrs -D warnings" $(CARGO) doc --package leasehold --no-deps --features $(FEATURES)

package: ## Packs the crate as it would be published, looks at its files and builds it; uploads nothing.
	scripts/package

# A commit's licences stay as they are, its advisories are as new as the database that can be reached.
deny: ## Licences and advisories, when cargo-deny is there.
	@if ! $(CARGO) deny --version >/dev/null 2>&1; then \
		echo 'cargo-deny is not installed: licences and advisories are not checked'; \
	else \
		$(CARGO) deny check bans licenses sources && \
		if $(CARGO) deny fetch db >/dev/null 2>&1; then $(CARGO) deny --offline check advisories; \
		else echo 'the advisory database is out of reach: advisories are not checked'; fi; \
	fi

setup: ## Installs what the tests need and is missing.
	scripts/setup

clean: ## Removes everything built, the tools too.
	rm -rf target
	$(CARGO) clean
