"""A short text of our own, so that a first report needs no file: stories, facts, a recipe, a dialogue and a sum."""

DEMO_PROMPT = "The cat that the dog had chased sat on the wall, and the cat was not afraid of the dog."

DEMO_TEXTS = (
    "The lighthouse keeper counted the ships every evening. There were seven on Monday, nine on Tuesday, and on "
    "Wednesday, when the fog came in, there were none. He lit the lamp all the same. A lamp, he said, is not for the "
    "ships you can see; it is for the ships that can see you. On Thursday morning a small boat lay on the beach, and "
    "in it sat a woman who asked him what day it was.",
    "Water boils at a lower temperature on a mountain than at the sea, because the air above presses less on it. At "
    "three thousand metres it boils near ninety degrees. An egg therefore takes longer to cook there, and so do beans "
    "and potatoes. Cooks in high towns know this well and use a pot with a tight lid, which keeps the steam in and "
    "lets the water grow hotter than it otherwise could.",
    "Mara has 24 pencils and gives a third of them to her brother. Then she buys two boxes with six pencils each. How "
    "many pencils does she have now? A third of 24 is 8, so after the gift she has 24 - 8 = 16 pencils. Two boxes "
    "hold 2 * 6 = 12 pencils. Together that makes 16 + 12 = 28 pencils. The answer is 28.",
    "To make bread for two days you need five hundred grams of flour, a little more than three hundred grams of warm "
    "water, ten grams of salt and some yeast. Mix the flour and the water first and let them rest for half an hour. "
    "Then add the salt and the yeast, knead until the dough is smooth, and let it rise until it has doubled. Bake it "
    "in a hot oven until the crust is dark and the loaf sounds hollow when you knock on it.",
    '"Did you bring the key?" asked Tom. "I thought you had the key," said Anna. They looked at each other and then '
    'at the door. "Then who has the key?" A dog barked somewhere behind the house. Anna laughed, because she had just '
    "felt something cold and small at the bottom of her pocket, under the tickets and the string. It was the key.",
    "A young scientist noticed that the needle of her compass moved whenever she switched on the lamp. She moved the "
    "compass away, and the needle stayed still. She moved it closer, and the needle turned again, always to the same "
    "side. When she exchanged the two wires of the battery, the needle turned to the other side. She wrote down every "
    "step, repeated it ten times, and only then told her colleagues what she believed.",
    "The city was founded on an island between two arms of the river. For three hundred years a wooden bridge was the "
    "only way to reach it, and whoever held the bridge held the city. After the great flood the bridge was rebuilt in "
    "stone, with eleven arches and a small chapel in the middle. Today eleven bridges cross the river, but the people "
    "still call the oldest one simply the bridge.",
    "In spring the swallows come back to the same barn and repair the same nests. Nobody knows exactly how they find "
    "their way over the sea and the desert. They seem to use the sun, the stars, the wind and perhaps the smell of "
    "the land. A swallow that was carried far away in a dark box was home again after ten days, and sat on the wire "
    "above the yard as if nothing had happened.",
)
