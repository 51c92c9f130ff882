# berth: one non-recursive Makefile. `make help` lists the targets.
PREFIX ?= /usr/local
SETUID ?=
DESTDIR ?=
BUILD := build
# A job a processor, unless the caller says otherwise; submakes share the jobs of the first.
ifeq ($(MAKELEVEL)$(filter -j% --jobs%,$(MAKEFLAGS)),0)
MAKEFLAGS += --jobs=$(shell nproc)
endif
CC ?= gcc

WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wswitch-enum -Wmissing-prototypes \
            -Wstrict-prototypes -Wformat=2 -Wvla -Wpointer-arith -Wcast-qual -Wwrite-strings -Wundef -Werror
# Of macros of OpenSSL and libseccomp, and of the kernel's structures that end in an array.
ifneq (,$(findstring clang,$(CC)))
WARNINGS += -Wno-cast-qual -Wno-missing-field-initializers -Wno-gnu-variable-sized-type-not-at-end -Wno-string-concatenation
endif
HARDENING := -D_FORTIFY_SOURCE=2 -fstack-protector-strong -fstack-clash-protection
BASE_CFLAGS := -std=gnu17 -D_GNU_SOURCE -I. $(WARNINGS) -g -fno-strict-aliasing -ffunction-sections -fdata-sections
PRODUCT_CFLAGS := $(BASE_CFLAGS) -O2 $(HARDENING) -fPIE
STATIC_CFLAGS := $(BASE_CFLAGS) -O2 $(HARDENING)
SANITIZE_CFLAGS := $(BASE_CFLAGS) -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
                   -DBERTH_TEST_BUILD
LINK_HARDENING := -pie -Wl,-z,relro,-z,now -Wl,--gc-sections -Wl,--as-needed

# ---- sources, by folder; *_macos.c is built on macOS only ------------------------------------------------
sources = $(filter-out %_macos.c,$(wildcard $(addsuffix /*.c,$(1))))
IPC := $(call sources,ipc/base ipc/wire ipc/chan)
IPC_CLIENT := $(call sources,ipc/client)
HELPER := $(filter-out helper/main.c,$(call sources,helper))
# Of the macOS parts what runs anywhere: for tests; no program on Linux has it.
HELPER_MACOS := $(call sources,helper/macos)
LIB := $(call sources,lib)
RULES := $(call sources,policy/rules)
ORCHESTRATOR := $(filter-out policy/orchestrator/main.c,$(call sources,policy/orchestrator))
DETECTORS := $(BUILD)/generated/detectors.c
GATEWAY := $(filter-out policy/gateway/main.c,$(call sources,policy/gateway)) $(DETECTORS)
POLICY_CLIENT := $(call sources,policy/client)
VM := $(call sources,vm)
PRELOAD := $(BUILD)/generated/preload.c
INIT := $(filter-out vm/init/main.c,$(call sources,vm/init)) $(PRELOAD)
PROBE := $(filter-out vm/probe/main.c,$(call sources,vm/probe))
IMAGES := $(call sources,images)
BACKENDS := $(call sources,backends)
FRONTEND := $(filter-out frontend/main.c,$(call sources,frontend))
MODULES := $(IPC) $(IPC_CLIENT) $(HELPER) $(HELPER_MACOS) $(LIB) $(RULES) $(ORCHESTRATOR) $(GATEWAY) $(POLICY_CLIENT) $(VM) $(INIT) \
           $(PROBE) $(IMAGES) $(BACKENDS) $(FRONTEND)

# ---- libraries ---------------------------------------------------------------------------------------------
HELPER_LIBS := -lnftnl -lmnl -lseccomp -lcap-ng
HOST_LIBS := -lssh2 -lcurl -larchive -lext2fs -lcom_err -lyaml -ljansson -lsqlite3 -lcrypto -lseccomp
GATEWAY_STATIC_LIBS := -levent_core -lnghttp2 -lcares -ljansson -lssl -lcrypto -lhs_runtime -lz -lbrotlidec -lbrotlicommon -lzstd -lm
ORCHESTRATOR_STATIC_LIBS := -levent_extra -levent_core -ljansson -lsqlite3 -lcrypto -lm
TEST_LIBS := -lcmocka $(HELPER_LIBS) $(HOST_LIBS) -levent_extra -levent_core -lnghttp2 -lcares -lssl \
             -lhs_runtime -lz -lbrotlidec -lbrotlienc -lbrotlicommon -lzstd -lpthread -lm

PROGRAMS := $(addprefix $(BUILD)/,berth berth-helper berth-gateway berth-orchestrator berth-init berth-probe)
STARTER := $(BUILD)/berth-helper-start
ifeq ($(SETUID),1)
PROGRAMS += $(STARTER)
endif
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
static_objects = $(patsubst %.c,$(BUILD)/static/%.o,$(1))
sanitized = $(patsubst %.c,$(BUILD)/san/%.o,$(1))

# One short line a file; `make V=1` shows the commands.
QUIET := $(if $(V),,@)
say = $(if $(V),,@printf '  %-7s %s\n' $(1) $@)
# Says nothing when there is nothing to do.
SUBMAKE = $(MAKE) --no-print-directory $(if $(V),,-s)
# glibc warns of name service and plug-ins in static programs; ours use numbers and c-ares, and load nothing. The option
# that silences this also lets undefined symbols pass, so those are looked for afterwards.
STATIC_LINK := -static -Wl,--gc-sections -Wl,--no-warnings
strip_static = $(QUIET)if nm $@ | grep ' U '; then echo "$@: undefined symbols" >&2; exit 1; fi; strip $@

.PHONY: all check demo fuzz bench lint install uninstall clean help packages format tests print-cflags
.DELETE_ON_ERROR:
all: $(PROGRAMS)

help:
	@echo 'make            build all programs under build/'
	@echo 'make demo       install what is missing, build, and watch an agent work and fail to get out'
	@echo 'make check      install what is missing, build, run every test; ends with "N passed, N failed"'
	@echo 'make lint fuzz bench format install uninstall clean'
	@echo 'make V=1        the same, with the commands shown'
	@echo 'make SETUID=1   also the setuid starter of the helper (berth-helper(8)); the same with install'

packages:
	@./install-packages

$(BUILD)/berth: $(call objects,frontend/main.c $(FRONTEND) $(BACKENDS) $(VM) $(IMAGES) $(POLICY_CLIENT) $(RULES) $(IPC_CLIENT) $(IPC) $(LIB))
	$(call say,LINK)
	$(QUIET)$(CC) $(LINK_HARDENING) -o $@ $^ $(HOST_LIBS)

$(BUILD)/berth-helper: $(call objects,helper/main.c $(HELPER) $(IPC))
	$(call say,LINK)
	$(QUIET)$(CC) $(LINK_HARDENING) -o $@ $^ $(HELPER_LIBS)

# The setuid entrance: only when asked for (SETUID=1), and for the tests. Static: no loader, no library.
$(STARTER): $(call objects,helper/starter/main.c helper/trusted.c ipc/base/base.c)
	$(call say,LINK)
	$(QUIET)$(CC) -static-pie -Wl,-z,relro,-z,now -Wl,--gc-sections -o $@ $^

$(BUILD)/berth-gateway: $(call static_objects,policy/gateway/main.c $(GATEWAY) $(RULES) $(LIB) $(IPC))
	$(call say,LINK)
	$(QUIET)$(CC) $(STATIC_LINK) -o $@ $^ $(GATEWAY_STATIC_LIBS)
	$(strip_static)

$(BUILD)/berth-orchestrator: $(call static_objects,policy/orchestrator/main.c $(ORCHESTRATOR) $(RULES) $(LIB) $(IPC))
	$(call say,LINK)
	$(QUIET)$(CC) $(STATIC_LINK) -o $@ $^ $(ORCHESTRATOR_STATIC_LIBS)
	$(strip_static)

$(BUILD)/berth-init: $(call static_objects,vm/init/main.c $(INIT) $(IPC))
	$(call say,LINK)
	$(QUIET)$(CC) $(STATIC_LINK) -o $@ $^
	$(strip_static)

$(BUILD)/berth-probe: $(call static_objects,vm/probe/main.c $(PROBE) $(IPC))
	$(call say,LINK)
	$(QUIET)$(CC) $(STATIC_LINK) -o $@ $^
	$(strip_static)

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(QUIET)$(CC) $(PRODUCT_CFLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/static/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(QUIET)$(CC) $(STATIC_CFLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/san/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(QUIET)$(CC) $(SANITIZE_CFLAGS) -MMD -MP -c -o $@ $<

# The detectors of secrets, compiled from data at build time (policy/rules/detectors).
$(BUILD)/tools/compile-detectors: $(call objects,policy/rules/detectors/compile.c $(LIB) $(IPC))
	@mkdir -p $(@D)
	$(call say,LINK)
	$(QUIET)$(CC) $(LINK_HARDENING) -o $@ $^ -lhs -lyaml -ljansson -lcrypto
$(DETECTORS): $(BUILD)/tools/compile-detectors $(wildcard policy/rules/detectors/*.yaml)
	@mkdir -p $(@D)
	$(call say,GEN)
	$(QUIET)$< $@ $(filter %.yaml,$^)

# The library that berth-init has within itself.
$(BUILD)/preload.so: vm/preload/statx.c vm/preload/poll.c Makefile
	@mkdir -p $(@D)
	$(call say,LINK)
	$(QUIET)$(CC) $(BASE_CFLAGS) -Os -g0 -fPIC -shared -nostdlib -Wl,-z,relro,-z,now,-z,noseparate-code -s -o $@ $(filter %.c,$^)
$(PRELOAD): $(BUILD)/preload.so
	@mkdir -p $(@D)
	$(call say,GEN)
	$(QUIET){ printf '#include <stddef.h>\nextern const unsigned char bt_preload[];\nextern const size_t bt_preload_length;\nconst unsigned char bt_preload[] = {\n' && \
	  od -An -v -tu1 $< | sed 's/[0-9][0-9]*/&,/g' && \
	  printf '};\nconst size_t bt_preload_length = sizeof(bt_preload);\n'; } >$@

# ---- tests -------------------------------------------------------------------------------------------------
# Every module in one archive of sanitised objects; a test links what it calls.
$(BUILD)/san/berth.a: $(call sanitized,$(MODULES))
	@rm -f $@
	$(call say,AR)
	$(QUIET)ar rcs $@ $^

UNIT_TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/test_*.c tests/attack/test_*.c tests/netns/test_*.c))
TEST_SUPPORT := $(call sanitized,$(wildcard tests/lib/*.c))
tests: $(UNIT_TESTS)
$(BUILD)/tests/%: $(BUILD)/san/tests/%.o $(TEST_SUPPORT) $(BUILD)/san/berth.a
	@mkdir -p $(@D)
	$(call say,LINK)
	$(QUIET)$(CC) -fsanitize=address,undefined -Wl,--as-needed -o $@ $< $(TEST_SUPPORT) $(BUILD)/san/berth.a $(TEST_LIBS)
# Sanitised programs for tests that start them as processes.
$(BUILD)/san/berth-helper: $(call sanitized,helper/main.c) $(BUILD)/san/berth.a
	$(call say,LINK)
	$(QUIET)$(CC) -fsanitize=address,undefined -o $@ $^ $(HELPER_LIBS)
$(BUILD)/san/berth-gateway: $(call sanitized,policy/gateway/main.c) $(BUILD)/san/berth.a
	$(call say,LINK)
	$(QUIET)$(CC) -fsanitize=address,undefined -o $@ $^ $(GATEWAY_STATIC_LIBS)
$(BUILD)/san/berth-orchestrator: $(call sanitized,policy/orchestrator/main.c) $(BUILD)/san/berth.a
	$(call say,LINK)
	$(QUIET)$(CC) -fsanitize=address,undefined -o $@ $^ $(ORCHESTRATOR_STATIC_LIBS)
SANITIZED_PROGRAMS := $(addprefix $(BUILD)/san/,berth-helper berth-gateway berth-orchestrator)

# Programs that test scripts start: the namespace of the test world, a client of the helper.
TEST_TOOLS := $(patsubst tests/lib/tools/%.c,$(BUILD)/tests/tools/%,$(wildcard tests/lib/tools/*.c))
tests: $(TEST_TOOLS) $(STARTER)
$(BUILD)/tests/tools/%: $(BUILD)/obj/tests/lib/tools/%.o $(call objects,$(IPC_CLIENT) $(IPC) $(HELPER_MACOS) vm/time_stamp.c)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(QUIET)$(CC) $(LINK_HARDENING) -o $@ $^
# A hostile program for containers: static, since it must run whatever is in the image.
HOSTILE := $(BUILD)/tests/hostile
tests: $(HOSTILE)
$(HOSTILE): $(call static_objects,$(wildcard tests/attack/hostile/*.c))
	@mkdir -p $(@D)
	$(call say,LINK)
	$(QUIET)$(CC) $(STATIC_LINK) -o $@ $^
.SECONDARY:

# ---- benchmarks and fuzzers --------------------------------------------------------------------------------
BENCH_PROGRAMS := $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(wildcard tests/bench/bench_*.c))
$(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o $(call objects,$(IPC_CLIENT) $(IPC) $(LIB) $(IMAGES) $(VM) $(POLICY_CLIENT) $(RULES))
	@mkdir -p $(@D)
	$(call say,LINK)
	$(QUIET)$(CC) $(LINK_HARDENING) -o $@ $^ $(HOST_LIBS) -lssl -lpthread
# What of the gateway a benchmark runs in its own process.
FILTERS := $(wildcard policy/gateway/filter*.c policy/gateway/dlp_*.c) $(DETECTORS) \
           $(addprefix policy/gateway/,detectors.c entropy.c held.c http.c inflate.c literals.c matches.c secrets.c \
             websocket_frames.c)
$(BUILD)/bench/bench_dlp: $(call objects,$(FILTERS))
$(BUILD)/bench/bench_dlp: HOST_LIBS += -levent_core -lhs_runtime -lz -lbrotlidec -lzstd -lm
FUZZ_SECONDS ?= 20
FUZZERS := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
fuzz_objects = $(patsubst %.c,$(BUILD)/fuzzobj/%.o,$(1))
$(BUILD)/fuzzobj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(QUIET)clang $(filter-out -Werror,$(BASE_CFLAGS)) -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -DBERTH_TEST_BUILD -MMD -MP -c -o $@ $<
$(BUILD)/fuzzobj/berth.a: $(call fuzz_objects,$(MODULES))
	@rm -f $@
	$(call say,AR)
	$(QUIET)ar rcs $@ $^
$(BUILD)/fuzz/%: $(BUILD)/fuzzobj/tests/fuzz/%.o $(BUILD)/fuzzobj/berth.a
	@mkdir -p $(@D)
	$(call say,LINK)
	$(QUIET)clang -fsanitize=fuzzer,address,undefined -o $@ $^ $(filter-out -lcmocka,$(TEST_LIBS))

check: packages
	+@$(SUBMAKE) all tests $(SANITIZED_PROGRAMS)
	@env -u MAKEFLAGS -u MAKELEVEL tests/run
demo:
	@./install-packages demo
	+@$(SUBMAKE) all $(BUILD)/tests/tools/namespace
	@demo/run
fuzz: packages
	+@$(SUBMAKE) $(FUZZERS)
	@tests/fuzz/run $(FUZZ_SECONDS)
bench: packages
	+@$(SUBMAKE) all $(BENCH_PROGRAMS) $(TEST_TOOLS)
	@tests/bench/run
lint: packages
	@tests/lint/run
# What the lint scripts compile with.
print-cflags:
	@echo '$(BASE_CFLAGS)'
format:
	clang-format -i $(shell git ls-files '*.c' '*.h')

# ---- installation ------------------------------------------------------------------------------------------
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/libexec/berth \
	  $(DESTDIR)$(PREFIX)/share/berth/recipes $(DESTDIR)$(PREFIX)/share/berth/bottles $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 0755 $(BUILD)/berth $(DESTDIR)$(PREFIX)/bin/
	install -m 0755 $(BUILD)/berth-helper $(DESTDIR)$(PREFIX)/sbin/
	install -m 0755 $(addprefix $(BUILD)/,berth-gateway berth-orchestrator berth-init berth-probe) $(DESTDIR)$(PREFIX)/libexec/berth/
ifeq ($(SETUID),1)
	install -m 0755 $(STARTER) $(DESTDIR)$(PREFIX)/libexec/berth/
endif
	install -m 0644 images/recipes/*.yaml $(DESTDIR)$(PREFIX)/share/berth/recipes/
	for pins in $(notdir $(patsubst %/package.json,%,$(wildcard images/recipes/*/package.json))); do \
	  install -d $(DESTDIR)$(PREFIX)/share/berth/recipes/$$pins && \
	  install -m 0644 images/recipes/$$pins/*.json $(DESTDIR)$(PREFIX)/share/berth/recipes/$$pins/ || exit; done
	install -m 0644 frontend/bottles/*.yaml $(DESTDIR)$(PREFIX)/share/berth/bottles/
	install -m 0644 backends/docker_seccomp.json $(DESTDIR)$(PREFIX)/share/berth/
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -m 0644 completions/berth.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/berth
	install -m 0644 completions/berth.zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_berth
	install -m 0644 completions/berth.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/
	install -m 0644 docs/berth.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 0644 docs/berth-helper.8 $(DESTDIR)$(PREFIX)/share/man/man8/
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/berth $(DESTDIR)$(PREFIX)/sbin/berth-helper \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions/berth $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_berth \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/berth.fish $(DESTDIR)$(PREFIX)/share/man/man1/berth.1 $(DESTDIR)$(PREFIX)/share/man/man8/berth-helper.8
	rm -rf $(DESTDIR)$(PREFIX)/libexec/berth $(DESTDIR)$(PREFIX)/share/berth
clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -path $(BUILD)/hosts -prune -o -type f -name '*.d' -print 2>/dev/null)
