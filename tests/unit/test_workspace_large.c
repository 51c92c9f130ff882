/* Sizes: 10 000 files in seconds, 2 GB without holding it in memory. */
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>

#include "tests/unit/workspace_fixture.h"

#define FILES 10000
#define LARGE_BYTES (2ULL * 1024 * 1024 * 1024)

static double now_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void test_ten_thousand_files(void **state)
{
    struct scene *scene = *state;
    run_in(scene->host, "git init -q; for d in $(seq 100); do mkdir -p src/d$d; for f in $(seq 100); do echo "
                        "\"file $d $f\" > src/d$d/f$f.c; done; done");
    double begin = now_seconds();
    launch(scene);
    double settled = now_seconds();
    assert_int_equal(scene->base.file_count, FILES);
    run_in(scene->guest,
           "for d in $(seq 100); do echo more >> src/d$d/f7.c; rm src/d$d/f8.c; done; echo n > n");
    double changed = now_seconds();
    collect(scene);
    double collected = now_seconds();
    assert_int_equal(scene->summary.changed_count, 201);
    expect_ok(scene, apply(scene));
    double applied = now_seconds();
    assert_same(scene);
    printf("# 10000 files: prepared, copied and settled in %.2f s, collected in %.2f s, applied in %.2f s\n",
           settled - begin, collected - changed, applied - collected);
    assert_true(applied - begin <
                120); /* a bound against quadratic work, on a loaded machine under sanitizers */
}

static void test_two_gigabytes(void **state)
{
    struct scene *scene = *state;
    struct statvfs room;
    assert_int_equal(statvfs(scene->folder, &room), 0);
    if ((uint64_t)room.f_bavail * room.f_frsize < 2 * LARGE_BYTES)
        skip();
    run_in(scene->host, "truncate -s 2G large; echo end >> large; echo s > small");
    double begin = now_seconds();
    expect_ok(scene, bt_workspace_prepare(scene->host, scene->state, &(struct bt_workspace_options){0},
                                          &scene->base, &scene->error));
    struct rusage children, self;
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &children), 0);
    assert_int_equal(getrusage(RUSAGE_SELF, &self), 0);
    printf("# 2 GB: recorded in %.1f s, git's memory %ld MiB, ours %ld MiB\n", now_seconds() - begin,
           children.ru_maxrss / 1024, self.ru_maxrss / 1024);
    assert_int_equal(scene->base.byte_count, LARGE_BYTES + 6);
    assert_false(scene->base.has_repository);
    assert_true(scene->base.notes.count > 0);
    assert_true(children.ru_maxrss < 256L * 1024);
    run_in(scene->state, "test \"$(git --git-dir=base.git cat-file -s refs/berth/base:large)\" = 2147483652");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(test_ten_thousand_files),
        SCENE_TEST(test_two_gigabytes),
    };
    return cmocka_run_group_tests_name("workspace_large", tests, NULL, NULL);
}
