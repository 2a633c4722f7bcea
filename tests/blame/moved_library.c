/* A library whose variable the executable has a copy of. SPDX-License-Identifier: MIT */
int shared_count = 5;
int own_count = 5;
static int hidden_count = 5;

static int helper(int table) {
    int sum = 0;
    for (int i = 0; i < table; i++) {
        sum += i;
    }
    return sum;
}

void library_work(void) {
    shared_count += 10; /* ADDED */
    own_count += helper(3); /* OWN */
    hidden_count += 1; /* HIDDEN */
}
