/* A hostile program in a container. Reads lines "ID VERB WORD..." from standard input, tries each in a
 * process of its own, bounded in time, and prints "ID OUTCOME" for it:
 *
 *     done HOW        it got what it wanted, as far as it can see
 *     refused ERROR   the name of an errno
 *     ended HOW       the process did not live to tell (a signal), or was too late
 *     others          as the attempts say
 *
 * It judges nothing: tests/lib/docker_hostile.py does, by what is seen outside. Static, since it must run
 * whatever is in the image.
 */
#include "tests/attack/hostile/hostile.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vm/container_protocol.h"

#define LINE_MAX_BYTES 8192
#define WORDS_MAX 12
#define ATTEMPT_SECONDS 150

void done(const char *how)
{
    (void)printf("done %s", how);
}

void refused(void)
{
    const char *name = strerrorname_np(errno);
    (void)printf("refused %s", name == NULL ? "?" : name);
}

void outcome(long result, const char *how)
{
    if (result < 0)
        refused();
    else
        done(how);
}

const char *word_or(char **words, size_t index, const char *otherwise)
{
    for (size_t i = 0; i <= index; i++)
        if (words[i] == NULL)
            return otherwise;
    return words[index];
}

long number_of(const char *word)
{
    return strtol(word, NULL, 0);
}

static const struct attempt *find(const char *verb)
{
    static const struct attempt *const groups[] = {network_attempts, privilege_attempts, file_attempts,
                                                   exhaust_attempts};
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
        for (const struct attempt *attempt = groups[i]; attempt->verb != NULL; attempt++)
            if (strcmp(attempt->verb, verb) == 0)
                return attempt;
    return NULL;
}

static _Noreturn void act(const struct attempt *attempt, char **words)
{
    (void)alarm(ATTEMPT_SECONDS);
    attempt->act(words);
    (void)fflush(stdout);
    _exit(0);
}

/* The id first: what a process that is killed could not say is said here. */
static void try_line(char *line)
{
    char *words[WORDS_MAX + 1] = {NULL};
    char *rest = NULL;
    size_t count = 0;
    int status = 0;
    for (char *word = strtok_r(line, " \n", &rest); word != NULL && count < WORDS_MAX;
         word = strtok_r(NULL, " \n", &rest))
        words[count++] = word;
    if (count < 2)
        return;
    const struct attempt *attempt = find(words[1]);
    (void)printf("%s ", words[0]);
    (void)fflush(stdout);
    if (attempt == NULL) {
        (void)printf("unknown verb %s\n", words[1]);
        return;
    }
    pid_t child = fork();
    if (child == 0)
        act(attempt, words + 2);
    if (child < 0 || waitpid(child, &status, 0) < 0)
        (void)printf("ended without a process");
    else if (WIFSIGNALED(status))
        (void)printf(" ended by %s",
                     WTERMSIG(status) == SIGALRM ? "being late" : sigabbrev_np(WTERMSIG(status)));
    (void)printf("\n");
    (void)fflush(stdout);
}

/* It changes what it can: so nowhere but where berth put it. */
static bool is_in_container(void)
{
    return access(BT_CONTAINER_INIT, F_OK) == 0;
}

int main(int count, char **words)
{
    char line[LINE_MAX_BYTES];
    if (!is_in_container()) {
        (void)fputs("hostile: this is not a container of berth's\n", stderr);
        return 64;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (count > 1 && find(words[1]) != NULL)
        act(find(words[1]), words + 2);
    while (fgets(line, sizeof(line), stdin) != NULL)
        try_line(line);
    return 0;
}
