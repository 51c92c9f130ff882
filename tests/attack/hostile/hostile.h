/* A hostile program in a container: what the files of this folder share. See main.c. */
#ifndef BERTH_TESTS_ATTACK_HOSTILE_H
#define BERTH_TESTS_ATTACK_HOSTILE_H

#include <stddef.h>

/* What an attempt may be told: its words after the verb, all strings, the last one NULL. */
struct attempt {
    const char *verb;
    void (*act)(char **words);
};

extern const struct attempt network_attempts[];
extern const struct attempt privilege_attempts[];
extern const struct attempt file_attempts[];
extern const struct attempt exhaust_attempts[];

/* Print how an attempt went. */
void done(const char *how);
void refused(void); /* with the name of errno */
/* done(how) where result is not negative, else refused(). */
void outcome(long result, const char *how);

/* A word, or a default where there is none. */
const char *word_or(char **words, size_t index, const char *otherwise);
long number_of(const char *word);

#endif
