/* Follows a null pointer, three calls deep. SPDX-License-Identifier: MIT */
struct node { struct node *next; int value; };
static struct node *head;

static int last(struct node *node) {
    while (node->next != node)
        node = node->next;
    return node->value;
}

static int go(void) { return last(head); }

int main(void) {
    struct node a = { 0, 1 }, b = { &a, 2 };
    head = &b;
    return go();
}
